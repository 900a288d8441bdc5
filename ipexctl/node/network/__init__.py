"""Checks of the network between hosts (`ports`, `connectivity`), for doctor and for the preflight of a run.

The preflight's look at a script and its imports (`imports`) is here, too.
"""
