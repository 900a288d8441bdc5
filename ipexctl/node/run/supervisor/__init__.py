"""The supervisor of a run on node0: begins the run, starts its ranks, talks to them, and keeps the record.

In: `Listen` and `Start` on stdin. Out: the record below RUNDIR. It alone acts, as `decisions/` says, which imports
nothing of this package. Never imported by ranks and host starters.
"""
