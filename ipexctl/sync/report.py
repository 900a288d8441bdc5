"""What became of a sync, as values, and the small events on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.remote.outcome import HostResult, Report

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class SyncResult(HostResult):
    """One host: where the tree is there, and what was done to it."""

    path: str | None = None
    """The directory of the tree, absolute."""
    generation: int | None = None
    sent_bytes: int = 0
    """From this machine to that host; what hosts hand on to one another isn't in it."""
    files_sent: int = 0
    """Files, and links, that were put in place."""
    files_deleted: int = 0
    kept: tuple[str, ...] = ()
    """Put there once, written to since on the host, and left so."""
    blocked: tuple[str, ...] = ()
    """The host's own, where the project has something else, which isn't there."""
    aside: tuple[str, ...] = ()
    """Replaced by the project's; the host's version is beside it as NAME.node-1."""
    would_send: tuple[str, ...] = ()
    would_delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncReport(Report[SyncResult]):
    root: Path
    project: str
    """The tree's name on the nodes."""
    digest: str
    files: int
    size: int
    path: str | None = None
    """The tree's directory, the same on every host; None where there is none that all have."""
    generation: int | None = None
    notes: tuple[str, ...] = ()
    dry_run: bool = False
    left_out: tuple[str, ...] = ()
    """Paths that may hold credentials; a directory has a slash behind it."""
