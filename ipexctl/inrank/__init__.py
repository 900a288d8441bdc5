"""Runs in a rank's own process, apart from the agent: gradients in shared memory, and the step meter.

`rank_hooks.py` imports it on demand from `RUNDIR/shim/ipexctl_inrank/`, so imports here are relative, or from torch and
the standard library of Python 3.8.
"""
