"""What is read of a repository's `.git`: its ignore files, and the paths that git tracks. git itself is never run."""

from __future__ import annotations

import contextlib
import os
import struct
from bisect import bisect_left
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.file_reader import IGNORE_FILE, FileKind, NotRegularError, TooLargeError, read_regular
from ipexctl.found_files import check_found

_INDEX: Final = FileKind("an index of git", 16 << 20)
"""Of some 150,000 files."""
_MOST_LETTERS: Final = 4
"""Of all names, for each byte of the index: in its version 4, a name begins as the last one."""
_STAT_AND_HASH: Final = 60
_EXTENDED: Final = 0x4000

ABSENT: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, NotRegularError)
"""git skips such files too."""


def read_ignore_file(path: Path, trust: str) -> bytes:
    try:
        content = read_regular(path, IGNORE_FILE)
    except TooLargeError:
        raise UserError(
            f"{path}: more than {IGNORE_FILE.limit:,} bytes of patterns", fix="shorten it, or remove it"
        ) from None
    check_found(path, trust=trust)
    return content


def repository_of(root: Path) -> Path | None:
    return next((directory for directory in (root, *root.parents) if os.path.exists(directory / ".git")), None)


class TrackedPaths:
    """The files that git tracks, and the directories above them; `in` takes paths relative to `root`. None by an index
    of an unknown form."""

    def __init__(self, root: Path) -> None:
        repository, self._names, self._above = repository_of(root), list[str](), ""
        if repository is not None and root != repository:
            self._above = f"{root.relative_to(repository).as_posix()}/"
        with contextlib.suppress(OSError, UserError, struct.error, ValueError, IndexError):
            index = _own_git_directory(repository) / "index" if repository is not None else root / ".git/index"
            check_found(index)
            self._names = sorted(_read_index(read_regular(index, _INDEX)))

    def __contains__(self, path: object) -> bool:
        name = f"{self._above}{path}"
        return self._has(name, is_directory=False) or self._has(f"{name}/", is_directory=True)

    def _has(self, name: str, *, is_directory: bool) -> bool:
        at = bisect_left(self._names, name)
        found = self._names[at] if at < len(self._names) else ""
        return found.startswith(name) if is_directory else found == name


def _own_git_directory(repository: Path) -> Path:
    """`.git`, or where a file of that name leads, as in a worktree or submodule."""
    named = _line_of(repository / ".git").removeprefix("gitdir:").strip()
    own = repository / named
    # `Path.is_dir` raises for a name that is too long for git to have written.
    return own if named and os.path.isdir(own) else repository / ".git"


def git_directory(repository: Path) -> Path:
    """The same; of a worktree, the repository's, whose files it shares and which `commondir` names."""
    own = _own_git_directory(repository)
    common = own / _line_of(own / "commondir")
    return common if os.path.isdir(common) else own


def _line_of(path: Path) -> str:
    with contextlib.suppress(*ABSENT):
        line = os.fsdecode(read_ignore_file(path, str(path.parent))).partition("\n")[0].strip()
        return "" if "\0" in line else line
    return ""


def _read_index(data: bytes) -> list[str]:
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in (2, 3, 4):
        return []
    names, name, at, left = [], b"", 12, _MOST_LETTERS * len(data)
    for _ in range(count):
        (flags,) = struct.unpack_from(">H", data, at + _STAT_AND_HASH)
        start = at + _STAT_AND_HASH + (4 if flags & _EXTENDED else 2)
        if version == 4:
            cut, more = data[start] & 127, data[start] & 128
            while more:
                start += 1
                cut, more = ((cut + 1) << 7) | (data[start] & 127), data[start] & 128
            start += 1
            name = name[: len(name) - cut]
        end = data.index(b"\0", start)
        name = (name if version == 4 else b"") + data[start:end]
        left -= len(name)
        if left < 0:
            return []
        names.append(os.fsdecode(name))
        at = end + 1 if version == 4 else at + (end - at + 8) // 8 * 8
    return names
