"""The user's project on every node: manifest, difference, transfer.

Its part on a node is `node/files/tree.py` and `node/files/tree_upload.py`.
"""
