"""Models and datasets of a hub: downloaded once, on one machine, and brought to the cache of every host."""
