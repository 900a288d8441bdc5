"""The content of a project as a value: each path with its kind, mode and hash, and one digest for all. Pure.

Paths are bytes on disk. Here they are strings, in which bytes that are not UTF-8 are surrogates, so that JSON works.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from ipexctl.node.common.files import encode_name
from ipexctl.node.common.json_parser import parse_json
from ipexctl.text import readable

if TYPE_CHECKING:
    from collections.abc import Iterable

EntryKind = Literal["f", "l", "d"]


class ManifestEntry(NamedTuple):
    """One path below the root; a row of the manifest in JSON."""

    path: str
    kind: EntryKind
    mode: int
    size: int
    content: str
    """A file's sha256, a link's target, empty for a directory."""


@dataclass(frozen=True)
class Manifest:
    """All paths of a project, sorted by their bytes."""

    entries: tuple[ManifestEntry, ...]

    @classmethod
    def of(cls, entries: Iterable[ManifestEntry]) -> Manifest:
        return cls(tuple(sorted(entries, key=lambda entry: encode_name(entry.path))))

    @cached_property
    def packed(self) -> bytes:
        """Compressed JSON, for a host and for the cache. Most of it are hashes, which no level makes much smaller."""
        return gzip.compress(self._json, 1, mtime=0)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self._json).hexdigest()

    @cached_property
    def _json(self) -> bytes:
        return json.dumps(self.entries, separators=(",", ":")).encode()

    @cached_property
    def files(self) -> dict[str, ManifestEntry]:
        """One entry for each content, by its hash."""
        return {entry.content: entry for entry in self.entries if entry.kind == "f"}

    @property
    def count(self) -> int:
        """The number of files and links."""
        return sum(entry.kind != "d" for entry in self.entries)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries if entry.kind == "f")

    @property
    def summary(self) -> str:
        """For messages: `214 files, 3.0 MB`."""
        return f"{self.count:,} {'file' if self.count == 1 else 'files'}, {readable(self.size)}"


def unpacked(packed: bytes, digest: str) -> Manifest:
    """Raises a ValueError, an OSError, an EOFError or a zlib.error unless it is the packed manifest of that digest."""
    text = gzip.decompress(packed)
    if hashlib.sha256(text).hexdigest() != digest:
        raise ValueError("it has another digest")
    return Manifest(tuple(ManifestEntry(*row) for row in parse_json(text)))
