"""Answers of agent commands about runs."""

from __future__ import annotations

from typing import NamedTuple

from ipexctl.node.common.plan import RunBy  # noqa: TC001  # `decode` looks it up


class PrunedRun(NamedTuple):
    id: str
    size: int
    why: str
    by: RunBy | None = None
    """Set if another account or machine began the run."""


class PruneReply(NamedTuple):
    pruned: tuple[PrunedRun, ...]
    kept: int
    size: int
    foreign: tuple[PrunedRun, ...] = ()
    """Runs of others, which go only with force."""
    newest: int = 0
    """Number of runs that are old enough and stay because they are among the newest."""


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
