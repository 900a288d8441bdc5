"""The package for a rank's own process, apart from the agent: gradients in shared memory, and the step meter.

`rank_hooks.py` imports it when a script needs one of them, from `RUNDIR/shim/ipexctl_inrank/`, so its modules import
each other relatively, and besides them only torch and the standard library of Python 3.8.
"""
