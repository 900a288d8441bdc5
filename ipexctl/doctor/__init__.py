"""Doctor: rules over the facts of each host and of all, the check of the network, a recommendation.

The rules, in `host_*` and `cluster_*`, are pure.
"""
