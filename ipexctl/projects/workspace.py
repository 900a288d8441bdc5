"""The members of a uv workspace: which directories its patterns name. Only directories below the root count."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from ipexctl.projects.declaration import PYPROJECT

MOST_MEMBERS: Final = 500


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
    """As `glob`: `*` is one part of a path, `**` any number of parts."""
    parts, wanted = path.split("/"), pattern.removeprefix("./").split("/")
    if "**" in wanted:
        return fnmatch.fnmatchcase(path, pattern.replace("**/", "*").replace("**", "*"))
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def find_members(root: Path, patterns: Sequence[str]) -> tuple[str, ...] | None:
    """Members of the workspace, relative to its root; None if there are more than `MOST_MEMBERS`."""
    real = Path(os.path.realpath(root))
    found: dict[str, None] = {}
    for pattern in patterns:
        plain = os.path.normpath(pattern)
        if pattern.startswith("!") or plain.startswith(("/", "..")):
            continue
        names = glob.iglob(os.path.join(plain, PYPROJECT), root_dir=root, recursive=True)
        for name in islice(names, 2 * MOST_MEMBERS):
            member = os.path.dirname(name)
            if matches_member(patterns, member) and Path(os.path.realpath(root / member)).is_relative_to(real):
                found[member] = None
            if len(found) > MOST_MEMBERS:
                return None
    return tuple(sorted(found))
