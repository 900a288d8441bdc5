"""The user's project on every node: manifest, difference, transfer.

What happens on a node is `node/tree.py` and `node/tree_put.py`.
"""
