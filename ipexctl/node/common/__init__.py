"""What all programs of the agent share: records, frames, files, paths, locks, processes, HTTP.

It takes and returns values and bytes, and imports no feature of the agent: it is sent with every command.
"""
