"""The hosts of the cluster, and readers for every file that can name them. Nothing here opens a connection."""
