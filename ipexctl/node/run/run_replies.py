"""Answers of agent commands about runs."""

from __future__ import annotations

from typing import NamedTuple


class PrunedRun(NamedTuple):
    id: str
    size: int
    why: str


class PruneReply(NamedTuple):
    pruned: tuple[PrunedRun, ...]
    kept: int
    size: int


class ProcessShare(NamedTuple):
    """A process that uses a rank's cores and is not part of the rank."""

    pid: int
    command: str
    """Name in /proc, which the process can set itself."""
    user: str
    share: float
    is_of_run: bool = False


class SuspectSnapshot(NamedTuple):
    others: tuple[ProcessShare, ...] = ()
    unseen_share: float | None = None
    """Use of the rank's cores by processes that are not visible, such as other accounts'; None if unknown."""
