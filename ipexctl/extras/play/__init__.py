"""Playbooks: reads YAML into a checked model, then runs it on hosts through the same functions as the commands."""
