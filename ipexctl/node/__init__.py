"""The agent: the part of ipexctl that runs on the hosts, on Python 3.8 or newer with only the standard library."""
