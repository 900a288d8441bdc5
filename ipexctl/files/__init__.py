"""Files on their way between the control machine and hosts; `node/files/` is the hosts' side.

In: manifests and requests. Out: complete files at their place, or none. Never runs or reads what it carries.
"""
