"""Models and datasets of a hub: downloaded once, on one machine, then copied to every host's cache."""
