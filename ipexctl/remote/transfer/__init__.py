"""Transfer of files, identified by hash, from one host to all others."""
