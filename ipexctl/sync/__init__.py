"""Copy the user's project to every node (on a node: `node/files/tree*.py`).

Input is a directory and ignore files; output is the same tree on each host. Nothing here sends credentials or changes
the project.
"""
