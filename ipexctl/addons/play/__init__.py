"""Playbooks: reads YAML into a checked model, then runs it on hosts through the same functions as the commands.

In: a playbook and variables. Out: a report of each task. Never starts a task before the whole file is checked.
"""
