"""The command line: one module per command, with its options, its call of `ipexctl.api`, and what it prints.

In: words, variables and files of defaults. Out: an exit code. Nothing here decides about a run or touches a host
itself. The docstring of a command's function is its help.
"""
