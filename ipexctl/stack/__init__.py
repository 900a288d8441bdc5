"""Tested combinations of wheels, the stacks that fit given hosts, and their environments.

In: a request and facts. Out: a plan, a lock, environments. Never installs into a Python of the user.
"""
