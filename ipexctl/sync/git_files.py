"""Read what a sync needs of a repository's `.git`: its ignore files, and the paths that git tracks. git itself is never
run.
"""

from __future__ import annotations

import contextlib
import os
import struct
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.file_reader import IGNORE_FILE, FileKind, NotRegularError, TooLargeError, read_regular
from ipexctl.found_files import check_found

_INDEX_FILE: Final = FileKind("an index of git", 16 << 20)
"""Enough for the index of some 150,000 files."""
_STAT_AND_HASH: Final = 60
_EXTENDED_FLAG: Final = 0x4000
ABSENT: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, NotRegularError)
"""git skips such files too."""


def read_ignore_file(path: Path, trust: str) -> bytes:
    """Return the text of an ignore file. Raises a UserError for one that is too large or that others may write."""
    try:
        content = read_regular(path, IGNORE_FILE)
    except TooLargeError:
        raise UserError(
            f"{path}: more than {IGNORE_FILE.limit:,} bytes of patterns", fix="shorten it, or remove it"
        ) from None
    check_found(path, trust=trust)
    return content


def repository_of(root: Path) -> Path | None:
    """Return the nearest directory above, or this one, that has a `.git`; None outside a repository."""
    return next((directory for directory in (root, *root.parents) if os.path.exists(directory / ".git")), None)


class TrackedPaths:
    """The files that git tracks, and the directories above them; `in` takes paths relative to `root`. It is empty if
    the index has an unknown form."""

    def __init__(self, root: Path) -> None:
        self._names, self._above = list[str](), ""
        if (repository := repository_of(root)) is None:
            return
        self._above = f"{root.relative_to(repository).as_posix()}/" if root != repository else ""
        index = _own_git_directory(repository) / "index"
        with contextlib.suppress(OSError, UserError, struct.error, ValueError):
            check_found(index)
            self._names = sorted(_read_index(read_regular(index, _INDEX_FILE)))

    def __contains__(self, path: object) -> bool:
        name = f"{self._above}{path}"
        at, below = (bisect_left(self._names, start) for start in (name, f"{name}/"))
        return name in self._names[at : at + 1] or "".join(self._names[below : below + 1]).startswith(f"{name}/")


def _own_git_directory(repository: Path) -> Path:
    """Return `.git`, or the directory that a file of that name leads to, as in a worktree or submodule."""
    named = _line_of(repository / ".git").removeprefix("gitdir:").strip()
    own = repository / named
    # `Path.is_dir` raises for a name that is too long for git to have written.
    return own if named and os.path.isdir(own) else repository / ".git"


def git_directory(repository: Path) -> Path:
    """Return the git directory of a repository. For a worktree, that is the one of the repository to which it belongs,
    whose files it shares and which `commondir` names."""
    own = _own_git_directory(repository)
    common = own / _line_of(own / "commondir")
    return common if os.path.isdir(common) else own


def _line_of(path: Path) -> str:
    with contextlib.suppress(*ABSENT):
        line = os.fsdecode(read_ignore_file(path, str(path.parent))).partition("\n")[0].strip()
        return "" if "\0" in line else line
    return ""


def _read_index(data: bytes) -> Iterator[str]:
    """Yield the paths in an index of git, version 2 or 3; none of another version. Raises a struct.error or a
    ValueError if it is damaged."""
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in (2, 3):  # names are shortened in 4, which git writes only if told to
        return
    at = 12
    for _ in range(count):
        (flags,) = struct.unpack_from(">H", data, at + _STAT_AND_HASH)
        start = at + _STAT_AND_HASH + (4 if flags & _EXTENDED_FLAG else 2)
        end = data.index(b"\0", start)
        yield os.fsdecode(data[start:end])
        at += (end - at + 8) // 8 * 8
