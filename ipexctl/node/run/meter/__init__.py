"""Figures of ranks and hosts: read in the rank wrapper, counted in windows, judged by the supervisor and `ipexctl why`.

They are read from the ring of steps and from /proc, and become files of windows, rates, and slow ranks. Nothing here
decides about a run.
"""
