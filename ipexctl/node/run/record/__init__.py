"""The record of a run below RUNDIR: output, its times and notes, status, stack dumps, the summary.

In: what the supervisor writes. Out: values for followers and `why`, also from a copy. Never decides about the run.
"""
