"""The hosts of the cluster, and readers of every file that can name them.

Nothing here opens a connection; how a host is reached lives in `remote`.
"""
