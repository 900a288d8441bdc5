"""Environments on the hosts: delivers, builds, verifies, lists and removes them."""
