"""Replies of the calls about files. The control machine decodes them strictly by their types."""

from __future__ import annotations

from typing import NamedTuple


class Generation(NamedTuple):
    number: int
    path: str
    digest: str | None
    whole: bool
    held: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    staged: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()


class TreeChanges(NamedTuple):
    path: str
    changed: bool
    placed: int
    deleted: int
    kept: tuple[str, ...]
    blocked: tuple[str, ...]
    moved_away: tuple[str, ...]
    would_place: tuple[str, ...] = ()
    would_delete: tuple[str, ...] = ()


class PutReply(NamedTuple):
    """Without changes, the reason: missing contents, or runs that use the tree."""

    changes: TreeChanges | None = None
    need: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()


class TreesReply(NamedTuple):
    home: str
    store: str | None
    """Equal on hosts that share this home; None if unknown."""
    python: str
    generations: tuple[Generation, ...]

    def generation(self, number: int) -> Generation | None:
        """Return what the host said of this generation of the tree; None if it has none of that number."""
        return next((generation for generation in self.generations if generation.number == number), None)


class InspectReply(NamedTuple):
    """What a path has of a push's list. Names are cut after the first few."""

    path: str
    python: str
    directory: str
    """The push's directory, next to or in the path; empty if nothing is missing."""
    token: str
    """Equal on hosts that share this directory."""
    listed: str
    """Hash of the list in the directory, passed back to `place`."""
    same: int
    lacking: int
    is_complete: bool
    is_refused: bool
    need: tuple[str, ...]
    names: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    differing_count: int = 0
    blocked: tuple[str, ...] = ()
    """Names where a directory, or a link to one, is in the way of a file, or vice versa."""
    blocked_count: int = 0


class SnapshotReply(NamedTuple):
    folder: str
    commit: str
    entries: str
    files: int
    downloaded: int
