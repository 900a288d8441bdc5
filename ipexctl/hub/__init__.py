"""Models and datasets of a hub; the programs on the hosts are in `node/hub/`.

In: names of repositories. Out: one download, copied to every host's cache. Never changes a repository.
"""
