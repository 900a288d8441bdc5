"""Move files between the control machine and hosts; `node/files/` is the hosts' side.

Input is manifests and requests; output is complete files at their paths, or none. Nothing here runs or reads what it
carries.
"""
