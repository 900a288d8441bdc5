"""Playbooks: YAML read into a typed tree, checked as a whole, then run on hosts by the same verbs as the commands.

What a person sees of it lives in `ui`.
"""
