"""The user's project on every node (on a node: `node/files/tree*.py`).

In: a directory and ignore files. Out: the same tree on each host. Never sends credentials or changes the project.
"""
