"""Files by hash, from one host of the cluster to all others."""
