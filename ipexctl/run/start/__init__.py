"""The start of a run: gather, plan, preflight, upload, start.

In: a `RunSpec`. Out: a run that lives on node0 without this call, or a `StartFailure`. Never leaves a part of a run.
"""
