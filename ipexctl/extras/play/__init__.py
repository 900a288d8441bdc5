"""Playbooks: YAML read into a checked model, then run on hosts by the same functions as the commands.

The output for users is rendered in `ui`.
"""
