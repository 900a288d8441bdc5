"""Programs that are measured: each is started by its path, on its own, and imports nothing from beside it."""
