"""The record of a run below RUNDIR: output, its times and notes, status, stack dumps, the summary.

The supervisor writes it; followers and `why` read it, also from a copy on the control machine.
"""
