"""Tested combinations of wheels: the version table, the stacks of it that fit given hosts, and their environments.

`catalog/` is the table, `resolve/` decides on a stack, `lock/` on its wheels, by the indexes; `choice` answers without
an index. `env/` builds, verifies, lists and removes environments on hosts. `install` is the command, `unchanged` its
short way where nothing is to be done, `download` its --download-only, `install_context` the state of one call.
"""
