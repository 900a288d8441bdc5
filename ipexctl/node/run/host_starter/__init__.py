"""Starts rank wrappers on its host: directly, or by the command lines that mpirun hands to its ssh.

A contact comes on stdin, then orders of the supervisor, each proven. Processes, their output and their exit codes come
of them. It never touches another host. The supervisor uses `RankWrappers` for node0's ranks.
"""
