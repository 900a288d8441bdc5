"""A run on its hosts: supervisor, rank wrapper, follower, stop, stack dump, snapshot."""
