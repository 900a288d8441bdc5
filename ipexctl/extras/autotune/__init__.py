"""Finds the fastest settings of a run by trials on the user's own hosts: candidates, blocks of starts, the verdict."""
