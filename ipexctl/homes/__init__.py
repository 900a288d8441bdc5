"""What ipexctl keeps on the control machine and in homes: records and copies of runs; how they are pruned and removed.

Nothing here starts, follows or ends a run.
"""
