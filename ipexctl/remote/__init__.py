"""Open sessions on hosts, run work on many hosts at once, and call the agent.

Input is hosts and commands; output is one `Outcome` per host. No answer of a host is trusted: names, sizes and types
are checked.
"""
