"""Starts rank wrappers without mpirun, and the lines by which mpirun starts them on other hosts.

Touches processes of its own host and one connection to the supervisor. The supervisor uses it for node0's ranks.
"""
