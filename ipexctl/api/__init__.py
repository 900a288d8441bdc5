"""The typed functions that commands, playbooks and Python programs call.

In: a spec or a request. Out: a report, a plan or a started run, as values. Nothing here prints, or reads the words of a
command.
"""
