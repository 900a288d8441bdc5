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


class ProcessShare(NamedTuple):
    """A process that ran on the cores of a rank and is not part of it."""

    pid: int
    command: str
    """Its name in /proc, which it chooses itself."""
    user: str
    share: float
    """Of one processor."""
    is_of_run: bool = False
    """Whether it belongs to another rank of the same run."""


class SuspectLook(NamedTuple):
    """What was seen on the host of a suspect rank within a second. None: not known there."""

    seconds: float
    cores: tuple[int, ...] = ()
    """That the rank may use."""
    own_share: float = 0.0
    """Processors that the rank itself used."""
    others: tuple[ProcessShare, ...] = ()
    unseen_share: float | None = None
    """Processors' time on its cores that no visible process explains, as of other accounts or containers."""
    quota: float | None = None
    """Processors that the cgroup may use."""
    throttled: float | None = None
    """The part of the time in which the cgroup was throttled."""
    mhz: float | None = None
    top_mhz: float | None = None
    hot: int | None = None
    """Thermal throttle events."""
    far_memory: float | None = None
    """The part of the rank's memory on other NUMA nodes than its cores; None with one node."""
