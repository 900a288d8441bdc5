"""Figures of ranks and hosts: read in the rank wrapper, counted in windows, judged by the supervisor and `why`.

Reads the ring of steps and /proc, and writes files of windows. A figure never decides about a run.
"""
