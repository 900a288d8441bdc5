"""The wrapper of one rank: its variables, cores, output, stack dumps and exit code.

It reads plan.json, job.json and the supervisor's messages, and reports the command's output and end. It never touches
other ranks, and imports neither the supervisor nor its decisions, so each starts and ends without the other.
"""
