"""Entries of a list of files, as project trees, pushes, fetches and checkpoints send them."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from typing import TYPE_CHECKING, Iterable, Literal, NamedTuple

from ipexctl.node.common.files import read_json, write_atomically
from ipexctl.node.common.guarded_directory import check_name
from ipexctl.node.common.json_records import parse_json

if TYPE_CHECKING:
    from pathlib import Path

EntryKind = Literal["f", "l", "d"]
_GZIP = 16 + zlib.MAX_WBITS


class ManifestEntry(NamedTuple):
    """An entry of a list. Trees and pushes send the first five fields as its row in JSON, fetches and checkpoints
    all."""

    path: str
    """Relative; empty if the list is a single file."""
    kind: EntryKind
    mode: int
    size: int
    content: str
    """sha256 of a file, empty if nobody has read it; target of a link; empty for a directory."""
    mtime: int = 0
    """In ns; 0 where times don't travel."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the path."""
        return tuple(self.path.split("/"))


def identity_of(status: os.stat_result) -> list[int]:
    """Return size, mtime in ns and inode of a file: it is unchanged if all three are."""
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def to_json(entries: Iterable[ManifestEntry]) -> bytes:
    """Return a list for a tree or a push: JSON without times."""
    return json.dumps([entry[:5] for entry in entries], separators=(",", ":")).encode()


def read_entries(document: bytes) -> list[ManifestEntry]:
    """Return the entries of a list. Raises an AgentError if a path would lead out of the directory."""
    entries = [ManifestEntry(*row) for row in parse_json(document)]
    for entry in entries:
        if entry.path:
            check_name(entry.path)
    return entries


def unpack_entries(packed: bytes) -> list[ManifestEntry]:
    """Return the entries of a list compressed with gzip."""
    return read_entries(zlib.decompress(packed, _GZIP))


VERIFIED = "verified.json"
RECORDED_SIZE = 1 << 20
"""Smaller files are read faster than their row."""


class VerifiedBlobs:
    """Hashes of a hub's cached blobs, so that gigabytes are not read at each push.

    `verified.json` next to the cache: path → sha256, size, mtime, inode and ctime. A blob is unchanged if all four are
    the same; every write makes the kernel set ctime. It is recorded once its bytes are synced, because a disk that
    loses power may keep a size without them. An invalid record or row means the blob is read.
    """

    def __init__(self, hf_home: Path) -> None:
        self._top, self._file = hf_home, hf_home / VERIFIED
        self._rows: dict[str, object] = dict(read_json(self._file))
        self._is_changed = False

    def sha256_of(self, path: str) -> str | None:
        """Return the recorded hash of a blob; None if it has none, or has changed since."""
        row = self._rows.get(path)
        if not isinstance(row, list) or len(row) != 5 or not isinstance(row[0], str):
            return None
        with contextlib.suppress(OSError):
            if row[1:] == _identity_with_ctime((self._top / path).stat()):
                return row[0]
        return None

    def add(self, path: str, sha256: str, number: int, before: os.stat_result) -> None:
        """Record the hash of a blob, once its bytes are synced, unless it is small or has changed. `number`: descriptor
        of the blob; `before`: its status when it was read."""
        if before.st_size < RECORDED_SIZE:
            return
        os.fsync(number)
        if _identity_with_ctime(os.fstat(number)) == _identity_with_ctime(before):
            self._rows[path] = [sha256, *_identity_with_ctime(before)]
            self._is_changed = True

    def save(self) -> None:
        """Write the record if something was added, without blobs that are gone. A full disk loses what was added."""
        if not self._is_changed:
            return
        rows = {path: row for path, row in self._rows.items() if (self._top / path).exists()}
        with contextlib.suppress(OSError):
            write_atomically(self._file, json.dumps(rows).encode(), is_of_user=True)


def _identity_with_ctime(status: os.stat_result) -> list[int]:
    return [*identity_of(status), status.st_ctime_ns]
