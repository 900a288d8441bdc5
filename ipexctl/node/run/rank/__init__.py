"""The wrapper of one rank: its variables, cores, output, stack dumps and exit code.

Touches the rank's processes and one connection to the supervisor, and nothing of other ranks. It imports neither
the supervisor nor its decisions: each starts and ends without the other.
"""
