"""The resolver: one stack for all hosts.

In: a request, facts, the available wheels. Out: a plan with its reason, or a refusal. Pure.
"""
