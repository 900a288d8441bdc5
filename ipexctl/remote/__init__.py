"""Sessions on hosts, fan-out over many hosts, and calls to the agent.

In: hosts and commands. Out: one `Outcome` per host. Never trusts an answer: names, sizes and types are checked.
"""
