"""What ipexctl keeps on the control machine and in homes: records and copies of runs; pruning and removal.

In: plans, statuses, limits. Out: `RunRecord`s, files removed. Never starts, follows or ends a run.
"""
