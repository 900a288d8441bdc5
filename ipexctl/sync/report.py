"""The result of a sync."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.remote.outcome import HostResult, Report

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class SyncResult(HostResult):
    path: str | None = None
    generation: int | None = None
    sent_bytes: int = 0
    """From this machine to that host, without transfers between hosts."""
    files_sent: int = 0
    files_deleted: int = 0
    kept: tuple[str, ...] = ()
    """Files from an earlier sync that changed on the host and were left unchanged."""
    blocked: tuple[str, ...] = ()
    """Files of the host that the project has too; not overwritten."""
    moved_away: tuple[str, ...] = ()
    """Replaced files; the host's version is kept as NAME.node-1."""
    would_send: tuple[str, ...] = ()
    would_delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncReport(Report[SyncResult]):
    root: Path
    project: str
    digest: str
    files: int
    size: int
    path: str | None = None
    generation: int | None = None
    notes: tuple[str, ...] = ()
    dry_run: bool = False
    left_out: tuple[str, ...] = ()
    """Paths that may contain credentials; a directory has a trailing slash."""
    fetched: tuple[str, ...] = ()
