"""Environments on a host: what pip is set to, lock, build, verify, list, remove."""
