"""Replies about project trees, `push` and a hub's cache. The control machine decodes them strictly by their types."""

from __future__ import annotations

from typing import NamedTuple


class Generation(NamedTuple):
    """One tree of the project on a host."""

    number: int
    path: str
    digest: str | None
    whole: bool
    held: tuple[str, ...] = ()
    """Other runs that use it."""
    ended: tuple[str, ...] = ()
    """Runs with a lease on it that ended by their record."""
    staged: tuple[str, ...] = ()
    """Hashes of contents staged in it."""
    kept: tuple[str, ...] = ()
    """Files changed on the host."""


class TreeChanges(NamedTuple):
    """The update of a tree, or with dry_run the one that would be made. Long lists are cut."""

    path: str
    changed: bool
    placed: int
    deleted: int
    kept: tuple[str, ...]
    """Files changed on the host."""
    blocked: tuple[str, ...]
    """Project files not written because the host has its own."""
    moved_away: tuple[str, ...]
    """Host files that were renamed."""
    would_place: tuple[str, ...] = ()
    """With dry_run, all files to place."""
    would_delete: tuple[str, ...] = ()


class PutReply(NamedTuple):
    """Without changes, the reason: missing contents, or runs that use the tree. Neither: another call was faster."""

    changes: TreeChanges | None = None
    need: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()


class TreesReply(NamedTuple):
    home: str
    store: str | None
    """Equal on hosts that share this home; None if unknown."""
    python: str
    generations: tuple[Generation, ...]
    updated: TreeChanges | None = None
    """Set if the same call updated or checked the only tree."""


class InspectReply(NamedTuple):
    """What a path has of a push's list. Names are cut after the first few."""

    path: str
    """Without links."""
    python: str
    directory: str
    """The push's directory, next to or in the path; empty if nothing is missing."""
    token: str
    """Equal on hosts that share this directory."""
    listed: str
    """Hash of the list in the directory, passed back to `place`."""
    same: int
    """Number of files and links that exist already."""
    lacking: int
    is_complete: bool
    need: tuple[str, ...]
    """Hashes of missing files."""
    names: tuple[str, ...] = ()
    """Names of missing files."""
    differing: tuple[str, ...] = ()
    differing_count: int = 0
    blocked: tuple[str, ...] = ()
    """Names where a directory, or a link to one, is in the way of a file, or vice versa."""
    blocked_count: int = 0


class PlaceReply(NamedTuple):
    placed: int


class SnapshotReply(NamedTuple):
    folder: str
    commit: str
    entries: str
    """Files and links below the cache, as JSON."""
    files: int
    downloaded: int
    """Bytes that were missing; with dry_run, bytes to download."""


class DownloadReply(NamedTuple):
    snapshots: tuple[SnapshotReply, ...]


class CachedRepo(NamedTuple):
    kind: str
    repo_id: str
    revisions: tuple[str, ...]
    """Branches and tags in the cache, else commits."""
    files: int
    size: int
    """Bytes on disk."""
    used: float
    """Last read of one of its files if the filesystem records that, else last write."""


class CacheReply(NamedTuple):
    path: str
    repos: tuple[CachedRepo, ...]
    removed: tuple[str, ...] = ()
    """Removed names in the cache."""
    freed: int = 0
