"""Which wheels belong together: the version table and what of it fits which hosts."""
