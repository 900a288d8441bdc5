"""Starts rank wrappers on its host: directly, or by the command lines that mpirun hands to its ssh.

In: a contact on stdin, then the supervisor's orders, each proven. Out: processes, their output and exit codes. Never
touches another host. The supervisor uses it for node0's ranks.
"""
