"""The agent: the part of ipexctl that runs on the hosts, with the standard library only, on Python 3.8 or newer.

The other packages import its records and protocol; it imports none of them.
"""
