"""Copy models and datasets of a hub to the hosts; the programs on the hosts are in `node/hub/`.

Input is names of repositories; output is one download, copied to every host's cache. A repository is never changed.
"""
