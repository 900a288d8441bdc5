"""Starts rank wrappers on its host: directly, or by the command lines that mpirun hands to its ssh.

It reads a contact on stdin, then the supervisor's orders, each proven, and reports output and exit codes of what it
starts. It never touches another host. The supervisor uses `RankWrappers` for node0's ranks.
"""
