"""Tested combinations of wheels: the version table, the stacks that fit given hosts, and their environments."""
