"""Results of a check of the connections between nodes, for both sides."""

from __future__ import annotations

from typing import NamedTuple


class NodeResult(NamedTuple):
    kind: str
    """`ok`; `login`: ssh from node0 fails; `back`: the node can't connect to a port of node0; `there`: node0 can't
    connect to a port of the node."""
    text: str = ""
