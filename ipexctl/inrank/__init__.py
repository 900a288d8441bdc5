"""Runs in a rank's own process: all-reduce in shared memory and between hosts, the step meter, and the profile of
two steps. Imports only itself, relatively, torch, and the standard library of Python 3.8."""
