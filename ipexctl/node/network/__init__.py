"""Checks between hosts, for doctor and before a run: open ports and the speed of links. And the check of imports.

None of these programs outlives the call that started it.
"""
