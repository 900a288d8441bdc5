"""The commit of a project, read from the files of `.git`. Git is never run, so no hook or filter of a repository is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ipexctl.node.common.plan import Commit

_HASH: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF: Final = re.compile(r"refs/[^\s\x00-\x1f\x7f]{1,250}")
_MAX_BYTES: Final = 4 << 20
"""For packed-refs; of other files only the first line is read."""


def find_commit(project: Path) -> Commit | None:
    return next((read_commit(place) for place in (project, *project.parents) if _is_there(place / ".git")), None)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def read_commit(root: Path) -> Commit | None:
    directory = _git_directory(root / ".git")
    if directory is None:
        return None
    head = _first_line(directory / "HEAD")
    if _HASH.fullmatch(head):
        return Commit(head)
    ref = head.removeprefix("ref: ").strip()
    if not _REF.fullmatch(ref) or ".." in ref:
        return None
    shared = directory
    if common := _first_line(directory / "commondir"):
        shared = directory / common
    for place in (directory, shared):
        found = _first_line(place / ref)
        if _HASH.fullmatch(found):
            return Commit(found, ref.removeprefix("refs/heads/"))
    packed = _packed(shared / "packed-refs", ref)
    return Commit(packed, ref.removeprefix("refs/heads/")) if packed else None


def _git_directory(path: Path) -> Path | None:
    """`.git`, or the directory that it names in a worktree or a submodule."""
    if path.is_dir():
        return path
    line = _first_line(path)
    return path.parent / line.removeprefix("gitdir: ") if line.startswith("gitdir: ") else None


def _first_line(path: Path) -> str:
    return _read(path, 4096).partition("\n")[0].strip()


def _packed(path: Path, ref: str) -> str:
    for line in _read(path, _MAX_BYTES).splitlines():
        found, _, name = line.partition(" ")
        if name == ref and _HASH.fullmatch(found):
            return found
    return ""


def _read(path: Path, limit: int) -> str:
    try:
        if not path.is_file():  # a pipe would wait for its writer
            return ""
        with path.open("rb") as file:
            return file.read(limit).decode(errors="replace")
    except (OSError, ValueError):
        return ""
