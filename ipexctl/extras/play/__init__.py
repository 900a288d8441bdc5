"""Playbooks: YAML read into a checked model, then run on hosts by the commands' own functions. `ui` renders."""
