"""Files on their way between the control machine and hosts; `node/files/` is the hosts' side."""
