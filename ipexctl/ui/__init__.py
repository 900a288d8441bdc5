"""Rendering: messages, streamed lines, tables and JSON. The only package that imports rich.

In: values. Out: text on a terminal, neutralised. Never decides, and knows no command.
"""
