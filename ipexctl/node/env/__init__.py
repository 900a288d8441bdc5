"""Environments on a host: pip settings, indexes, lock, build, verify, list, remove.

In: a lock. Out: a complete environment with env.json, or none. Never touches a Python that it did not make.
"""
