"""A run's life: start, follow, detach, attach, stop, record. What runs on the nodes is in `node/`, not here."""
