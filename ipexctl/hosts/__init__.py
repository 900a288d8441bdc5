"""The hosts of the cluster, and readers for every file that can name them.

In: options and files. Out: `Host`s in order, or a refusal with its line. Never opens a connection.
"""
