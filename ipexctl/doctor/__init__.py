"""Rules over each host's facts and over all hosts, the network check, a recommendation.

In: `Facts`. Out: `Finding`s with a level, a sentence and a fix. A rule never touches a host, and nothing is changed.
"""
