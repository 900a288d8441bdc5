"""Files on a host: the content store, project trees, checkpoints, sending files."""
