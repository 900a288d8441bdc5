"""The source of a fetch, the entries that a host lists, and the result. Pure.

What a host says is not trusted: a name that leads out of where it is to go is refused here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.remote.outcome import HostError, HostResult
from ipexctl.text import readable

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["d", "f", "l"]

_UNREADABLE: Final = "what it says of a file can't be read"
_LONGEST_PATH: Final = 4096
_LARGEST: Final = 1 << 80
"""Maximum nanoseconds that os.utime accepts."""
_GROWTH: Final = 64 << 20
"""A file may grow by this, or to twice its size, between the list and its transfer."""


@dataclass(frozen=True, slots=True)
class FetchSource:
    """The parts of `RUN`, `RUN:PATH` or `HOST:PATH`."""

    word: str
    path: str | None
    """None without a colon: the whole run."""


@dataclass(frozen=True, slots=True)
class FetchEntry:
    """A file, directory or link of a host, and its destination."""

    index: int
    parts: tuple[str, ...]
    kind: Kind
    mode: int
    size: int
    mtime: int
    """Nanoseconds."""
    target: str = ""
    growing: bool = False
    """It may have grown while it was read, as logs do."""

    @property
    def name(self) -> str:
        return "/".join(self.parts)


@dataclass(frozen=True, slots=True)
class FileFailure:
    """An entry that could not be fetched, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class FetchResult(HostResult):
    """One host: what was fetched from it."""

    source: str = ""
    """The path there."""
    dest: str = ""
    brought: tuple[str, ...] = ()
    unchanged: int = 0
    size: int = 0
    """Bytes of the fetched files."""
    received: int = 0
    """Bytes transferred: fewer when a part was present already."""
    resumed: tuple[str, ...] = ()
    failed: tuple[FileFailure, ...] = ()
    left_out: tuple[FileFailure, ...] = ()
    """Entries that are no file, directory or link."""


def parse_source(text: str) -> FetchSource:
    """Parse a source; a host may have an account or be an address in brackets: `me@node2:out`, `[fe80::2]:out`."""
    account, at, rest = text.rpartition("@") if "@" in text.partition(":")[0] else ("", "", text)
    if rest.startswith("["):
        word, closing, path = rest[1:].partition("]:")
        if not closing:
            raise UserError(f"{quoted(text)}: an address in brackets, a colon and a path", fix="'[fe80::2]:out/'")
        word, colon = f"{account}{at}{word}", ":"
    else:
        word, colon, path = text.partition(":")
    if not word:
        raise UserError(
            f"{quoted(text)} names no run and no host", fix="RUN:PATH or HOST:PATH; the last run: last:PATH"
        )
    if "\0" in text:
        raise UserError(f"{quoted(text)} can't be a path")
    if colon and not path:
        raise UserError(f"{quoted(text)} names no path", fix=f"{word}:. is all of the directory; a run alone: {word}")
    return FetchSource(word, path if colon else None)


def read_entry(fields: Mapping[str, Any], index: int) -> FetchEntry:
    """Decode an entry of a host's list; raises a HostError if it is invalid."""
    name, kind, to = fields.get("n"), fields.get("t"), fields.get("to") or ""
    size, mode, mtime = _read_numbers(fields)
    parts = tuple(name.split("/")) if isinstance(name, str) and _can_be_a_path(name) else ()
    if not parts or any(part in ("", ".", "..") for part in parts):
        raise HostError(
            f"it wants to write to {quoted(str(name)[:100])}: that leads out of where files are to go",
            "nothing of it was written; look at that machine before you trust it",
        )
    is_link = kind == "l"
    if kind not in ("d", "f", "l") or fields.get("i") != index or not isinstance(to, str) or bool(to) != is_link:
        raise HostError(_UNREADABLE)
    if is_link and not _can_be_a_path(to):
        raise HostError(_UNREADABLE)
    return FetchEntry(index, parts, cast("Kind", kind), mode, size, mtime, to, bool(fields.get("g")))


def update_entry(entry: FetchEntry, fields: Mapping[str, Any]) -> FetchEntry:
    """A file as it was when it was opened: it may have changed since it was listed, and have grown."""
    size, mode, mtime = _read_numbers(fields)
    if (size, mode, mtime) == (entry.size, entry.mode, entry.mtime):
        return entry
    if size > max(2 * entry.size, entry.size + _GROWTH):
        listed = f"which had {readable(entry.size)} when it was listed"
        raise HostError(
            f"it sends {readable(size)} of {quoted(entry.name)}, {listed}", "the same command lists it anew"
        )
    return replace(entry, size=size, mode=mode, mtime=mtime)


def _read_numbers(fields: Mapping[str, Any]) -> tuple[int, int, int]:
    """Size, mode and time: only permission bits, and numbers that this machine can store."""
    found = tuple(fields.get(key) for key in ("s", "m", "mt"))
    if not all(type(number) is int and abs(number) < _LARGEST for number in found):
        raise HostError(_UNREADABLE)
    size, mode, mtime = cast("tuple[int, int, int]", found)
    if size < 0:
        raise HostError(_UNREADABLE)
    return size, mode & 0o777, mtime


def _can_be_a_path(text: str) -> bool:
    try:
        return 0 < len(encoded(text)) <= _LONGEST_PATH and "\0" not in text
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return False


def renamed(entry: FetchEntry, name: str) -> FetchEntry:
    """The one requested file, under another name."""
    return replace(entry, parts=(name,))


def encoded(part: str) -> bytes:
    """A name as bytes; hosts send names as UTF-8, with surrogates for other bytes."""
    return part.encode("utf-8", "surrogateescape")


def resolve_destination(dest: str, *, single: bool) -> tuple[str, str | None]:
    """The destination directory, and the name of a single file in it; the rules are those of cp."""
    if single and not dest.endswith("/") and not os.path.isdir(dest):
        return os.path.dirname(dest) or ".", os.path.basename(dest)
    return dest or ".", None
