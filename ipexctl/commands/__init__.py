"""The command line: one module per command, with its options, its call and what it prints.

In: words, variables and files of options. Out: an exit code. Never decides about a run or touches a host itself.
"""
