"""Output of a run: the live view on a terminal, plain lines, events and documents.

In: the updates of `run/follow_run.py`. Out: lines. Nothing here asks a host.
"""
