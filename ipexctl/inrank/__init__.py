"""Runs in a rank's own process: all-reduce in shared memory and between hosts, the step meter, the profile,
and what a script places on GPUs.

In: what torch calls, the plan's variables. Out: sums, the ring of steps, notes. Never imports more than itself,
relatively, torch, and the standard library of Python 3.8.
"""
