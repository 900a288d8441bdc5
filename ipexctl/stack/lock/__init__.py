"""Locks: the exact wheels of a stack, with sources and hashes.

In: a plan and answers of indexes. Out: a `Lock`. Never runs a build unless the call names the package.
"""
