"""The paths that git tracks, from its index; git itself is never run. An index of an unknown form names none."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.file_reader import FileKind, read_regular
from ipexctl.found_files import check_found

_INDEX: Final = FileKind("an index of git", 64 << 20)
_STAT_AND_HASH: Final = 60
_EXTENDED: Final = 0x4000


def tracked_paths(git_directory: Path) -> frozenset[str]:
    """Files, and the directories above them, relative to the repository."""
    found = set[str]()
    with suppress(OSError, UserError, struct.error, ValueError, IndexError):
        check_found(git_directory / "index")
        for path in _read_index(read_regular(git_directory / "index", _INDEX)):
            while path and path not in found:
                found.add(path)
                path = path.rpartition("/")[0]
    return frozenset(found)


def _read_index(data: bytes) -> list[str]:
    signature, version, count = struct.unpack_from(">4sII", data)
    if signature != b"DIRC" or version not in (2, 3, 4):
        return []
    names, name, at = [], b"", 12
    for _ in range(count):
        (flags,) = struct.unpack_from(">H", data, at + _STAT_AND_HASH)
        start = at + _STAT_AND_HASH + (4 if flags & _EXTENDED else 2)
        if version == 4:  # the name begins as the last one, without some bytes at its end
            cut, more = data[start] & 127, data[start] & 128
            while more:
                start += 1
                cut, more = ((cut + 1) << 7) | (data[start] & 127), data[start] & 128
            start += 1
            name = name[: len(name) - cut]
        end = data.index(b"\0", start)
        name = (name if version == 4 else b"") + data[start:end]
        names.append(os.fsdecode(name))
        at = end + 1 if version == 4 else at + (end - at + 8) // 8 * 8
    return names
