"""The contents of a home, the answer of `list` and `remove`, for both sides."""

from __future__ import annotations

from typing import NamedTuple


class HomeEntry(NamedTuple):
    """Files of one kind."""

    kind: str
    entries: int
    size: int
    path: str = ""
    """Where those are that stay."""


class HomeReply(NamedTuple):
    logins: bool
    """Whether `trust` put files there."""
    live: tuple[str, ...]
    """Runs that go on there."""
    starting: tuple[str, ...]
    """Runs whose files are there, and that may start."""
    over: tuple[str, ...]
    """Runs that have ended, by their record there."""
    busy: tuple[str, ...]
    """Other reasons why nothing can be removed now."""
    found: tuple[HomeEntry, ...]
    """What was there before."""
    left: tuple[HomeEntry, ...]
    """What stays; `runs`, `projects` and `results` are files that runs wrote."""
