"""Runs in a rank's own process: all-reduce in shared memory and between hosts, and the step meter.

`rank_hooks.py` imports this package from `RUNDIR/shim/ipexctl_inrank/` when it is needed. So it imports only itself,
relatively, torch, and the standard library of Python 3.8.
"""
