"""The hub on a host: whether it is reached, and downloads into its cache (`common/hub_cache.py`)."""
