"""All paths of a project or a push as a value: each with kind, mode and hash, and one digest. Pure."""

from __future__ import annotations

import gzip
import hashlib
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ipexctl.node.common.files import encode_name
from ipexctl.node.common.json_records import parse_json
from ipexctl.node.files.manifest import ManifestEntry, to_json
from ipexctl.text import readable


@dataclass(frozen=True)
class Manifest:
    entries: tuple[ManifestEntry, ...]

    @classmethod
    def of(cls, entries: Iterable[ManifestEntry]) -> Manifest:
        return cls(tuple(sorted(entries, key=lambda entry: encode_name(entry.path))))

    @cached_property
    def packed(self) -> bytes:
        """Compressed JSON. Mostly hashes, which no level makes much smaller."""
        return gzip.compress(self._json, 1, mtime=0)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self._json).hexdigest()

    @cached_property
    def _json(self) -> bytes:
        return to_json(self.entries)

    @cached_property
    def files(self) -> dict[str, ManifestEntry]:
        return {entry.content: entry for entry in self.entries if entry.kind == "f"}

    @property
    def count(self) -> int:
        return sum(entry.kind != "d" for entry in self.entries)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries if entry.kind == "f")

    @property
    def summary(self) -> str:
        """`214 files, 3.0 MB`."""
        return f"{self.count:,} {'file' if self.count == 1 else 'files'}, {readable(self.size)}"


def unpack_manifest(packed: bytes, digest: str) -> Manifest:
    """Raises a ValueError, an OSError, an EOFError or a zlib.error unless the digest matches."""
    text = gzip.decompress(packed)
    if hashlib.sha256(text).hexdigest() != digest:
        raise ValueError("it has another digest")
    return Manifest(tuple(ManifestEntry(*row) for row in parse_json(text)))


def leads_out(path: str, target: str) -> bool:
    """True if a link there leads out of the list's directory, by its text."""
    below = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return below.startswith("/") or below.partition("/")[0] == ".."
