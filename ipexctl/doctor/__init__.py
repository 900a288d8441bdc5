"""What facts mean for training: rules over one host and over all of them, a look at the network, a recommendation.

The rules are pure; only `network` and `smoke` touch a machine.
"""
