"""One entry of a file list, for both sides: path, kind, mode, size, content, time.

Project trees, pushes, fetches and checkpoint exchanges have lists of `ManifestEntry`. A list comes from another
machine, so paths that lead out of its directory are refused. Paths are bytes on disk and strings here, with surrogates
for bytes that are not UTF-8, so that JSON can hold them.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Iterable, Literal, NamedTuple

from ipexctl.node.common.guarded_directory import check_name
from ipexctl.node.common.json_parser import parse_json

if TYPE_CHECKING:
    import os

EntryKind = Literal["f", "l", "d"]
_GZIP = 16 + zlib.MAX_WBITS


class ManifestEntry(NamedTuple):
    """The first five fields are its row in JSON."""

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
        return tuple(self.path.split("/"))


def identity_of(status: os.stat_result) -> list[int]:
    """Size, mtime in ns and inode: unchanged if all three are."""
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def to_json(entries: Iterable[ManifestEntry]) -> bytes:
    return json.dumps([entry[:5] for entry in entries], separators=(",", ":")).encode()


def read_entries(document: bytes) -> list[ManifestEntry]:
    entries = [ManifestEntry(*row) for row in parse_json(document)]
    for entry in entries:
        if entry.path:
            check_name(entry.path)
    return entries


def unpack_entries(packed: bytes) -> list[ManifestEntry]:
    return read_entries(zlib.decompress(packed, _GZIP))
