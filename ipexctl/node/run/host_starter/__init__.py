"""Starts rank wrappers on its host: directly, or by the command lines that mpirun hands to its ssh.

Touches processes of its own host and one connection to the supervisor. The supervisor uses it for node0's ranks.
"""
