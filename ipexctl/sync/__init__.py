"""The user's project on every node: manifest, difference, transfer.

Its part on a node is `node/files/{tree,tree_upload,tree_command}.py`.
"""
