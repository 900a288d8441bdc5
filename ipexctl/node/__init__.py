"""The agent: the part of ipexctl that runs on the hosts, on Python 3.8 or newer with only the standard library.

In: one JSON request on stdin. Out: events, and the reply as the last. Never imports the control side.
"""
