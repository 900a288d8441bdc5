"""Results of looks at the network of a node, for both sides."""

from __future__ import annotations

from typing import NamedTuple


class NodeResult(NamedTuple):
    kind: str
    """`ok`; `login`: ssh from node0 fails; `back`: the node can't connect to a port of node0; `there`: node0 can't
    connect to a port of the node."""
    text: str = ""


class FoundHub(NamedTuple):
    """What a host has of a hub, and whether it reaches it."""

    problem: str = ""
    """Why it does not reach the hub; empty if it does, or was not asked to try."""
    has_own_cache: bool = False
    """Whether variables of the account name a cache."""
    in_home: tuple[str, ...] = ()
    """Of the repositories that were asked for, by their words, those in the home's cache."""
    in_own: tuple[str, ...] = ()
    """Those in the account's cache."""
    directories: tuple[str, ...] = ()
    """Those whose name is a directory where ranks work: no hub is asked for them."""
    others: int = 0
    """The repositories of the account's cache that the home's lacks."""
    prepared_in_home: tuple[str, ...] = ()
    """The datasets that the library `datasets` has prepared beside the home's cache: it loads those without the hub."""
    prepared_in_own: tuple[str, ...] = ()
    """Those beside the account's."""
