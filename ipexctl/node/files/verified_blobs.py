"""Blobs of a hub's cache that were read and had their hash, so that a model of gigabytes is not read at each push.

In: the HF_HOME of a home, a blob's path below it, an open file. Out: the sha256 of a blob that nobody has changed since
it was hashed. The record lies beside the cache, in `verified.json`: path → sha256, size, mtime, inode and ctime.

The rules: a blob is unchanged if all four are as they were; the ctime is the kernel's, and every write sets it. It is
recorded when its bytes are on the disk, as a disk that loses power may keep a size without them. A record that cannot
be read or written, and rows of another form, count as none: then the blob is read. Small files are always read.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from ipexctl.node.common.files import read_json, write_atomically
from ipexctl.node.files.manifest import identity_of

if TYPE_CHECKING:
    from pathlib import Path

VERIFIED = "verified.json"
RECORDED_SIZE = 1 << 20
"""A smaller file is read faster than its row."""


class VerifiedBlobs:
    """Those of one HF_HOME."""

    def __init__(self, hf_home: Path) -> None:
        self._top, self._file = hf_home, hf_home / VERIFIED
        self._rows: dict[str, object] = dict(read_json(self._file))
        self._is_changed = False

    def sha256_of(self, path: str) -> str | None:
        """That of an unchanged blob; None for one that has to be read."""
        row = self._rows.get(path)
        if not isinstance(row, list) or len(row) != len(_NO_ROW) or not isinstance(row[0], str):
            return None
        with contextlib.suppress(OSError):
            if row[1:] == _identity((self._top / path).stat()):
                return row[0]
        return None

    def add(self, path: str, sha256: str, number: int, before: os.stat_result) -> None:
        """`number`: a descriptor of the blob, whose bytes have this hash; `before`: its status when they were read."""
        if before.st_size < RECORDED_SIZE:
            return
        os.fsync(number)
        if _identity(os.fstat(number)) == _identity(before):
            self._rows[path] = [sha256, *_identity(before)]
            self._is_changed = True

    def save(self) -> None:
        """Without rows of blobs that are gone."""
        if not self._is_changed:
            return
        rows = {path: row for path, row in self._rows.items() if (self._top / path).exists()}
        with contextlib.suppress(OSError):
            write_atomically(self._file, json.dumps(rows).encode(), is_of_user=True)


_NO_ROW = ("", 0, 0, 0, 0)


def _identity(status: os.stat_result) -> list[int]:
    return [*identity_of(status), status.st_ctime_ns]
