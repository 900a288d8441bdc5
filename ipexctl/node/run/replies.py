"""Answers of the commands about runs, used on both sides."""

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
    """Bytes of the runs that are kept."""


class ProcessShare(NamedTuple):
    """A process on the cores of a rank that is not part of it."""

    pid: int
    command: str
    """Its name in /proc, which it chooses itself."""
    user: str
    share: float
    """Of one processor."""
    is_of_run: bool = False


class SuspectLook(NamedTuple):
    """What was seen on the host of a suspect rank within a second. None: unknown."""

    others: tuple[ProcessShare, ...] = ()
    unseen_share: float | None = None
    """Processor time on its cores that no visible process explains, as of other accounts or containers."""
