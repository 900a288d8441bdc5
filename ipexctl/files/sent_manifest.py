"""Define the list of all paths of a project or a push: kind, mode and hash of each, and one digest of all.

Equal lists have equal digests on every machine, because the entries are sorted and the JSON has one form.
"""

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
    """Sorted by the bytes of their paths."""

    @classmethod
    def of(cls, entries: Iterable[ManifestEntry]) -> Manifest:
        """Return the list of these entries, sorted."""
        return cls(tuple(sorted(entries, key=lambda entry: encode_name(entry.path))))

    @cached_property
    def packed(self) -> bytes:
        """Return the list as JSON, compressed at the fastest level: hashes, most of it, shrink little at any level."""
        return gzip.compress(self._json, 1, mtime=0)

    @cached_property
    def digest(self) -> str:
        """The hash by which hosts know this list of files."""
        return hashlib.sha256(self._json).hexdigest()

    @cached_property
    def _json(self) -> bytes:
        return to_json(self.entries)

    @cached_property
    def files(self) -> dict[str, ManifestEntry]:
        """Return sha256 → a file with that content; of several with one content, the last."""
        return {entry.content: entry for entry in self.entries if entry.kind == "f"}

    @property
    def count(self) -> int:
        """Return the number of files and symlinks."""
        return sum(entry.kind != "d" for entry in self.entries)

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(entry.size for entry in self.entries if entry.kind == "f")

    @property
    def summary(self) -> str:
        """Return text such as `214 files, 3.0 MB`."""
        return f"{self.count:,} {'file' if self.count == 1 else 'files'}, {readable(self.size)}"


def unpack_manifest(packed: bytes, digest: str) -> Manifest:
    """Return the list of a `Manifest.packed`.

    Raises a ValueError if it has another digest, and a ValueError, OSError, EOFError or zlib.error if it is damaged.
    """
    text = gzip.decompress(packed)
    if hashlib.sha256(text).hexdigest() != digest:
        raise ValueError("it has another digest")
    return Manifest(tuple(ManifestEntry(*row) for row in parse_json(text)))


def leads_out(path: str, target: str) -> bool:
    """True if a symlink leads out of the list's directory, by its text alone.

    `path`: where it is, relative to that directory. `target`: where it leads.
    """
    below = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return below.startswith("/") or below.partition("/")[0] == ".."
