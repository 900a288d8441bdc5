"""Locks: the exact wheels of a stack, with sources and hashes."""
