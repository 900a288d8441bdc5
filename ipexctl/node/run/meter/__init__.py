"""Figures of ranks and hosts: read in the rank wrapper, counted in windows, judged by the supervisor and `why`.

In: the ring of steps and /proc. Out: files of windows, rates, slow ranks. Never decides about a run.
"""
