"""A file as every way of a file lists it, for both sides: path, kind, mode, size, content, time.

A project's tree, a push, a fetch and an exchange of checkpoints have lists of `ManifestEntry`. In comes such a list as
it was packed or sent; out go entries whose paths are checked. The rule: the list comes from another machine, so no path
of it may lead out of the directory below which its files are written.

Paths are bytes on disk. Here they are strings, in which bytes that are not UTF-8 are surrogates, so that JSON works.
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
    """One path of a list; the first five fields are its row in JSON."""

    path: str
    """Relative; of a list that is a single file, empty."""
    kind: EntryKind
    mode: int
    size: int
    content: str
    """A file's sha256, empty where nobody has read it; a link's target; empty for a directory."""
    mtime: int = 0
    """In ns; 0 where times don't travel."""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.split("/"))


def identity_of(status: os.stat_result) -> list[int]:
    """By which a file is known to be unchanged without reading it: size, mtime in ns and inode."""
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def to_json(entries: Iterable[ManifestEntry]) -> bytes:
    """The list as it is packed, hashed and kept: without times."""
    return json.dumps([entry[:5] for entry in entries], separators=(",", ":")).encode()


def read_entries(document: bytes) -> list[ManifestEntry]:
    """The list of `to_json`. Raises an AgentError for a path that leads out of its directory."""
    entries = [ManifestEntry(*row) for row in parse_json(document)]
    for entry in entries:
        if entry.path:
            check_name(entry.path)
    return entries


def unpack_entries(packed: bytes) -> list[ManifestEntry]:
    return read_entries(zlib.decompress(packed, _GZIP))
