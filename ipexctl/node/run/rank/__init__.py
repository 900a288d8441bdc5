"""The wrapper of one rank: its variables, cores, output, stack dumps and exit code.

In: plan.json, job.json, the supervisor's messages. Out: the command's output and end. Never touches other ranks, or
imports the supervisor or its decisions: each starts and ends without the other.
"""
