"""Find the members of a uv workspace: the directories that its patterns name. Only directories below the root count."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from ipexctl.projects.declaration import PYPROJECT

MOST_ENTRIES: Final = 50_000
"""How many entries of directories are read, for all patterns together."""


def matches_member(patterns: Iterable[str], path: str) -> bool:
    """True if the last of the patterns that match the path, relative to the workspace, does not begin with `!`."""
    is_member = False
    for pattern in patterns:
        if _matches(path, pattern.removeprefix("!").strip("/")):
            if pattern.startswith("!"):
                return False
            is_member = True
    return is_member


def _matches(path: str, pattern: str) -> bool:
    """Return True if a shell would match the path: `*` is one part of a path, `**` any number of parts."""
    parts, wanted = path.split("/"), pattern.removeprefix("./").split("/")
    if "**" in wanted:
        return fnmatch.fnmatchcase(path, pattern.replace("**/", "*").replace("**", "*"))
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def find_members(root: Path, patterns: Sequence[str]) -> tuple[str, ...] | None:
    """Return the members of the workspace, relative to its root; None if finding them takes more than `MOST_ENTRIES`
    entries."""
    real = Path(os.path.realpath(root))
    plain = [os.path.normpath(pattern) for pattern in patterns if not pattern.startswith("!")]
    waiting = [("", re.sub(r"(\*\*/)+", "**/", pattern)) for pattern in plain if not pattern.startswith(("/", ".."))]
    members, seen, left = set[str](), set[tuple[str, str]](), MOST_ENTRIES
    while waiting:
        directory, pattern = waiting.pop()
        if (directory, pattern) in seen:
            continue
        seen.add((directory, pattern))
        if not pattern and matches_member(patterns, directory) and (root / directory / PYPROJECT).is_file():
            members.add(directory)
        first, _, rest = pattern.partition("/")
        if first == "**":
            waiting.append((directory, rest))
        names = [first] if first else []
        if any(letter in first for letter in "*?["):
            names = _names_in(root / directory, left)
        left -= 1 + len(names)
        if left <= 0:
            return None
        for name in names:
            path = f"{directory}/{name}" if directory else name
            if first == "**" and not (root / path).is_symlink() and (root / path).is_dir():
                waiting.append((path, pattern))
            elif first != "**" and fnmatch.fnmatchcase(name, first) and _is_directory_in(real, root / path):
                waiting.append((path, rest))
    return tuple(sorted(members))


def _names_in(directory: Path, most: int) -> list[str]:
    """Return the names in a directory, without hidden ones; none if it can't be read."""
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in islice(entries, most) if not entry.name.startswith(".")]
    except OSError:
        return []


def _is_directory_in(real: Path, path: Path) -> bool:
    return path.is_dir() and Path(os.path.realpath(path)).is_relative_to(real)
