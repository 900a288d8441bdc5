"""The result of a sync."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.remote.outcome import HostResult, Report

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class SyncResult(HostResult):
    """One host: the path of the tree there, and the changes to it."""

    path: str | None = None
    """The directory of the tree, absolute."""
    generation: int | None = None
    sent_bytes: int = 0
    """From this machine to that host, without transfers between hosts."""
    files_sent: int = 0
    """Files and links that were written."""
    files_deleted: int = 0
    kept: tuple[str, ...] = ()
    """Files that an earlier sync wrote, changed on the host since, and left unchanged."""
    blocked: tuple[str, ...] = ()
    """Files of the host where the project has others, which were not written."""
    moved_away: tuple[str, ...] = ()
    """Files that were replaced; the host's version is kept as NAME.node-1."""
    would_send: tuple[str, ...] = ()
    would_delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncReport(Report[SyncResult]):
    """The result of a sync."""

    root: Path
    project: str
    """The tree's name on the nodes."""
    digest: str
    files: int
    size: int
    path: str | None = None
    """The tree's directory if it is the same on every host."""
    generation: int | None = None
    notes: tuple[str, ...] = ()
    dry_run: bool = False
    left_out: tuple[str, ...] = ()
    """Paths that may contain credentials; a directory has a trailing slash."""
    fetched: tuple[str, ...] = ()
    """Paths that are left out because fetch brought them."""
