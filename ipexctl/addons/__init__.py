"""Parts that call the core, each a folder with its commands, decisions and output.

In: the words of a command, or a call of `addons_list.py`. Out: what it prints. Never imported by the core, but for a
call that needs one.
"""
