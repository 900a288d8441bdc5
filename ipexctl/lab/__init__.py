"""A real cluster on this machine: namespaces, real sshd, CPU costumes, faults.

Linux and root only. Tests use it, and so can anyone who wants to try the tool on a laptop.
"""
