"""Notes of what `fetch` created on the control machine: sync leaves it out of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.sync.path_notes import PathNotes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_NOTES: Final = PathNotes("fetched")


def note_fetched(paths: Iterable[str]) -> None:
    """Note files and directories that fetch created, and forget those that were removed since."""
    _NOTES.add(paths)


def fetched_below(root: Path) -> frozenset[str]:
    """The noted paths below a project's root, relative to it. The root has no links in its path.

    A Python file is code for the next run and no result, unless it is in a directory that fetch created.
    """
    return frozenset(path for path in _NOTES.below(root) if not path.endswith(".py"))
