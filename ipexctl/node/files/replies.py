"""The answers about a project's trees, about `push` and about the cache of a hub, for both sides.

They are values only: the agent makes them on a host, and the control machine decodes them by their types, so a host
that answers anything else has failed.
"""

from __future__ import annotations

from typing import NamedTuple


class Generation(NamedTuple):
    """One tree of the project on a host."""

    number: int
    path: str
    digest: str | None
    whole: bool
    """It is up to date."""
    held: tuple[str, ...] = ()
    """Other runs that use it."""
    ended: tuple[str, ...] = ()
    """Runs with a lease on it that have ended by their record."""
    staged: tuple[str, ...] = ()
    """Hashes of contents that wait in it."""
    kept: tuple[str, ...] = ()
    """Files that were changed on the host."""


class TreeChanges(NamedTuple):
    """The update of a tree, or with dry_run the update that would be done. Of lists that are kept short, the first."""

    path: str
    changed: bool
    placed: int
    deleted: int
    kept: tuple[str, ...]
    """Files that were changed on the host."""
    blocked: tuple[str, ...]
    """Files of the project that are not there, because the host has its own."""
    moved_away: tuple[str, ...]
    """Files of the host that have got another name."""
    would_place: tuple[str, ...] = ()
    """With dry_run, all that would be placed."""
    would_delete: tuple[str, ...] = ()


class PutReply(NamedTuple):
    """Without changes, the reason: contents that are missing, or runs that use the tree. Else another was faster."""

    changes: TreeChanges | None = None
    need: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()


class TreesReply(NamedTuple):
    home: str
    store: str | None
    """The same on hosts that share this home; None if it is not known."""
    python: str
    generations: tuple[Generation, ...]
    updated: TreeChanges | None = None
    """If the same call updated or checked the only tree."""


class InspectReply(NamedTuple):
    """What of the list of a push is at its path. Of names, the first few."""

    path: str
    """Without links."""
    python: str
    directory: str
    """That of the push, beside or in the path; empty if nothing is to come."""
    token: str
    """The same on hosts that see this directory."""
    listed: str
    """The hash of the list that is in the directory, which `place` gets again."""
    same: int
    """Files and links that are there already."""
    lacking: int
    is_complete: bool
    need: tuple[str, ...]
    """The hashes of the files that are to come."""
    names: tuple[str, ...] = ()
    """Of those that are to come."""
    differing: tuple[str, ...] = ()
    differing_count: int = 0
    blocked: tuple[str, ...] = ()
    """A directory, or a link to one, stands there where a file is to be, or the other way round."""
    blocked_count: int = 0


class PlaceReply(NamedTuple):
    placed: int


class SnapshotReply(NamedTuple):
    """A snapshot of a repository in the cache of a hub."""

    folder: str
    commit: str
    entries: str
    """The list of its files and links, below the cache, as JSON."""
    files: int
    downloaded: int
    """Bytes that were not there before; with dry_run, that would come."""


class DownloadReply(NamedTuple):
    snapshots: tuple[SnapshotReply, ...]


class CachedRepo(NamedTuple):
    """A repository in the cache of a hub on a host."""

    kind: str
    repo_id: str
    revisions: tuple[str, ...]
    """The names of its branches and tags that are there, else commits."""
    files: int
    size: int
    """Bytes on disk."""
    used: float
    """When a file of it was last read, as far as the filesystem keeps that; else written."""


class CacheReply(NamedTuple):
    path: str
    repos: tuple[CachedRepo, ...]
    removed: tuple[str, ...] = ()
    """The names in the cache of those that were removed."""
    freed: int = 0
