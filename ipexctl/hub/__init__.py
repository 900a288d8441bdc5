"""Downloads models and datasets from a hub once, on one machine, and copies them to every host's cache."""
