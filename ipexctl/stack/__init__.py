"""Tested combinations of wheels: the version table, and the stacks of it that fit given hosts."""
