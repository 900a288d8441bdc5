"""Network checks between hosts, for doctor and before a run, and the check of imports.

In: addresses, ports, names of modules. Out: what answered, how fast. Never outlives the call.
"""
