"""The record of a run below RUNDIR: output, its times and notes, status, stack dumps, and the document of the run.

The supervisor writes it. Followers and `ipexctl why` read it, also from a copy. Nothing here decides about the run.
"""
