"""Checks of the network between hosts, for doctor and for the preflight of a run."""
