"""The package for a rank's own process, apart from the agent: gradients added up in shared memory.

`rank_hooks.py` imports it when a script first makes a DistributedDataParallel, from `RUNDIR/shim/ipexctl_inrank/`, so
its modules import each other relatively, and besides them only torch and the standard library of Python 3.8.
"""
