"""Tested combinations of wheels: the version table, the stacks that fit given hosts, and their environments.

`catalog` is the table, `resolve/` chooses a stack, `lock/` its wheels by asking the indexes; `choice` answers without
an index. `env/` works on environments. `unchanged` is the short way of `install` when there is nothing to do.
"""
