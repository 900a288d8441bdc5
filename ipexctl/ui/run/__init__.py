"""The view of a run on a terminal and in a pipe."""
