"""Shared by every agent command: errors, events, small file and process helpers."""
