"""What a host does with a hub: find out whether it reaches the hub, and download into its cache.

The cache is that of huggingface_hub (`common/hub_cache.py`), so scripts find the files there. The token comes on stdin
and is never written to a file.
"""
