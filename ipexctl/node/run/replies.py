"""The answers of the commands about runs, for both sides."""

from __future__ import annotations

from typing import NamedTuple


class PrunedRun(NamedTuple):
    """A run that was pruned, or would be."""

    id: str
    size: int
    why: str


class PruneReply(NamedTuple):
    pruned: tuple[PrunedRun, ...]
    kept: int
    size: int
    """Bytes of the runs that are kept."""
