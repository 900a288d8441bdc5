"""A cluster of real SSH hosts on one Linux machine, and the command `lab`.

In: names, numbers and CPU profiles. Out: a hostfile, and namespaces until `lab down`. Never touches other hosts.
"""
