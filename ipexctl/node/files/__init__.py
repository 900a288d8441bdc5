"""Files on a host: the content store, project trees, sending files."""
