"""Locks: the exact wheels of a stack, with their sources and hashes."""
