"""Environments on the hosts: delivers, builds, verifies, lists and removes them.

In: a lock. Out: a result per host. Never names an environment that is not complete and verified.
"""
