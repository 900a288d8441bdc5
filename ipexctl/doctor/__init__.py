"""Doctor: rules over the facts of each host and of all, the check of the network, a recommendation.

The rules are pure; only `network_check`, `logins` and `smoke` touch a host.
"""
