"""Tested combinations of wheels: the version table, the stacks that fit given hosts, and their environments.

`catalog` is the table, `resolve/` chooses a stack, `lock/` queries the indexes for the stack's wheels; `choice` answers
without an index. `env/` works on environments.
"""
