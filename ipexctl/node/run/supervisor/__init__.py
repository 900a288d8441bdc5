"""The supervisor of a run on node0: begins the run, starts its ranks, talks to them, and keeps the record.

It alone acts: sockets, processes, signals, files and the clock. `decisions/` says what to do, and imports nothing of
this package; neither do ranks and host starters.
"""
