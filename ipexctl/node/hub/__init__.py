"""The hub on a host: whether it is reached, and downloads into its cache (`common/hub_cache.py`).

In: names of repositories, a token on stdin. Out: snapshots in the cache. Never keeps the token.
"""
