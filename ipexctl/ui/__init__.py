"""Rendering: messages, streamed lines, tables and JSON. The only package that imports rich.

In: values. Out: text on stdout or stderr. What a host printed is neutralised, so that it cannot control the terminal.
Nothing here decides, or knows a command.
"""
