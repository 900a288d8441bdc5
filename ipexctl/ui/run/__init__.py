"""Output of a run: the live view on a terminal, plain lines, events and documents.

In: the stream of `run/follow_run.py`. Out: lines. Never asks a host.
"""
