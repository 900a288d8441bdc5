"""Results of network checks on a node, for both sides."""

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
    """Names that are directories where ranks work: no hub is asked for them."""
    others: int = 0
    """Repositories in the account's cache that the home's lacks."""
    prepared_in_home: tuple[str, ...] = ()
    """Datasets that `datasets` prepared next to the home's cache and loads without the hub."""
    prepared_in_own: tuple[str, ...] = ()
