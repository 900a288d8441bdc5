"""What a project is, as a value: every path with its kind, mode and content, and one digest for all of it. Pure.

Paths are bytes on disk. Here they are text in which bytes that are no UTF-8 stand as surrogates, so that JSON has them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["f", "l", "d"]


def encode(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def decode(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Entry:
    """One path below the root."""

    path: str
    kind: Kind
    mode: int
    size: int
    content: str
    """A file's sha256, where a link leads, nothing for a directory."""

    def row(self) -> list[Any]:
        return [self.path, self.kind, self.mode, self.size, self.content]


@dataclass(frozen=True)
class Manifest:
    """All of a project, in the order of its paths' bytes."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Manifest:
        return cls(tuple(sorted(entries, key=lambda entry: encode(entry.path))))

    @cached_property
    def packed(self) -> bytes:
        """As it travels, and as it is kept."""
        rows = [entry.row() for entry in self.entries]
        return gzip.compress(json.dumps(rows, separators=(",", ":")).encode(), 6, mtime=0)

    @cached_property
    def digest(self) -> str:
        text = json.dumps([entry.row() for entry in self.entries], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def files(self) -> dict[str, Entry]:
        """One path for each content."""
        return {entry.content: entry for entry in self.entries if entry.kind == "f"}

    @property
    def count(self) -> int:
        """Files, and links: what is put in place is counted so, too."""
        return sum(entry.kind != "d" for entry in self.entries)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries if entry.kind == "f")


def unpacked(packed: bytes) -> Manifest:
    """Raises a ValueError, an OSError or an EOFError where it is none."""
    return Manifest(tuple(Entry(*row) for row in json.loads(gzip.decompress(packed))))
