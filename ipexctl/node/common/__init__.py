"""Shared by all agent commands: errors, events, records, files, processes, HTTP."""
