"""Shared by all programs of the agent: records, frames, files, the one walk, locks, processes, HTTP.

In and out: values and bytes. Imports no feature: it is sent with every command.
"""
