"""How node0 may reach every node by ssh: a key, one line of authorized_keys a home, an ssh config of our own.

How we reach the hosts ourselves lives in `remote`; what mpirun is told of all this lives with whoever starts it.
"""
