"""The supervisor of a run on node0: it begins the run, starts the ranks, talks to them, and keeps the record.

It reads `Listen` and `Start` on stdin, and writes the record below RUNDIR. Only this package acts; `decisions/` says
what is to be done, and imports nothing of this package. Ranks and host starters never import it.
"""
