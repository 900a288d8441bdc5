"""Parts that the core works without: each a folder with its commands, decisions and output.

An extra calls the core and is found by its entry point (`ipexctl/extensions.py`); the core imports none of them.
"""
