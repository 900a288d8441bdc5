"""Models and datasets of a hub: names of its repositories, the machine that downloads one once, and its way to every
host's cache. The programs on the hosts are in `node/hub/`.
"""
