"""Remembers hashes of a hub's cached blobs, so that gigabytes are not read at each push.

`verified.json` next to the cache: path → sha256, size, mtime, inode and ctime. A blob is unchanged if all four are the
same; every write makes the kernel set ctime. It is recorded once its bytes are synced, because a disk that loses power
may keep a size without them. An invalid record or row means the blob is read.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

from ipexctl.node.common.files import read_json, write_atomically
from ipexctl.node.files.file_stream import identity_of

if TYPE_CHECKING:
    from pathlib import Path

VERIFIED = "verified.json"
RECORDED_SIZE = 1 << 20
"""Smaller files are read faster than their row."""


class VerifiedBlobs:
    def __init__(self, hf_home: Path) -> None:
        self._top, self._file = hf_home, hf_home / VERIFIED
        self._rows: dict[str, object] = dict(read_json(self._file))
        self._is_changed = False

    def sha256_of(self, path: str) -> str | None:
        row = self._rows.get(path)
        if not isinstance(row, list) or len(row) != len(_NO_ROW) or not isinstance(row[0], str):
            return None
        with contextlib.suppress(OSError):
            if row[1:] == _identity((self._top / path).stat()):
                return row[0]
        return None

    def add(self, path: str, sha256: str, number: int, before: os.stat_result) -> None:
        """`number`: descriptor of the blob with this hash; `before`: its status when it was read."""
        if before.st_size < RECORDED_SIZE:
            return
        os.fsync(number)
        if _identity(os.fstat(number)) == _identity(before):
            self._rows[path] = [sha256, *_identity(before)]
            self._is_changed = True

    def save(self) -> None:
        if not self._is_changed:
            return
        rows = {path: row for path, row in self._rows.items() if (self._top / path).exists()}
        with contextlib.suppress(OSError):
            write_atomically(self._file, json.dumps(rows).encode(), is_of_user=True)


_NO_ROW = ("", 0, 0, 0, 0)


def _identity(status: os.stat_result) -> list[int]:
    return [*identity_of(status), status.st_ctime_ns]
