"""Keep what ipexctl has on the control machine and in homes: records and copies of runs, and their pruning and removal.

Input is plans, statuses and limits; output is `RunRecord`s, and files that are removed. Nothing here starts, follows or
ends a run.
"""
