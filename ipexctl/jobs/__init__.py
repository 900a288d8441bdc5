"""A run's life: start, follow, detach, attach, stop, record. The programs on the nodes are in `node/run/`."""
