"""Rendering: messages, streamed lines, tables and JSON. The only package that imports rich."""
