"""Environments on a host: pip settings, indexes, lock, build, verify, list, remove."""
