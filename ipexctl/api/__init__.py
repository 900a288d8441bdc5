"""The typed functions that commands, playbooks and Python programs call.

In: a spec or a request. Out: a report, a plan or a started run, as values. Never prints, and reads no words of a call.
"""
