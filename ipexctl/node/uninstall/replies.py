"""The contents of a home, as `list` and `remove` report them; used on both sides."""

from __future__ import annotations

from typing import NamedTuple


class HomeEntry(NamedTuple):
    kind: str
    entries: int
    size: int
    path: str = ""
    """Where the files that stay are."""


class HomeReply(NamedTuple):
    logins: bool
    live: tuple[str, ...]
    starting: tuple[str, ...]
    """Runs that have files here and may still start."""
    over: tuple[str, ...]
    """Runs that have ended, by their record here."""
    busy: tuple[str, ...]
    """Reasons other than runs why nothing can be removed now."""
    found: tuple[HomeEntry, ...]
    left: tuple[HomeEntry, ...]
    """What stays; `runs`, `projects` and `results` are files that runs wrote."""
