"""Results of network checks on a node."""

from __future__ import annotations

from typing import NamedTuple


class NodeResult(NamedTuple):
    kind: str
    """`ok`; `login`: ssh from node0 fails; `back`: no connection to node0; `there`: no connection from node0."""
    text: str = ""


class FoundHub(NamedTuple):
    problem: str = ""
    """Why the hub is unreachable; empty if it answers or was not tried."""
    has_own_cache: bool = False
    """True if the account's variables name a cache."""
    in_home: tuple[str, ...] = ()
    in_own: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    """Names that are directories in the ranks' working directory, so the hub is not asked for them."""
    others: int = 0
    """Number of repositories in the account's cache that are not in the home's."""
    prepared_in_home: tuple[str, ...] = ()
    """Datasets that the library `datasets` prepared next to the home's cache. It loads them without the hub."""
    prepared_in_own: tuple[str, ...] = ()
