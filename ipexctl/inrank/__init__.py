"""Runs in a rank's own process: all-reduce in shared memory and between hosts, and the step meter. Imports only itself,
relatively, torch, and the standard library of Python 3.8."""
