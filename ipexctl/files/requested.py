"""The source of a fetch, the entries that a host lists and which of them were requested, and the result.

In come the words of a call and the list that a host sends; out go a `FetchSource`, the entries that may be written
(`Requested.accept`), or an error. The rule: a host's list is not trusted. All of it is checked before anything is
written, and a name that leads out of the destination is refused. Pure, but that `resolve_destination` looks whether
DEST is a directory.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import posixpath
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.node.common.files import encode_name
from ipexctl.remote.outcome import HostError, HostResult
from ipexctl.text import readable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FetchedKind = Literal["d", "f", "l"]

_UNREADABLE: Final = "its list of files can't be read"
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
    kind: FetchedKind
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
    older: tuple[str, ...] = ()
    """Files of a run's path that are older than the run, and are at DEST now."""


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
    return FetchEntry(index, parts, cast("FetchedKind", kind), mode, size, mtime, to, bool(fields.get("g")))


def update_entry(entry: FetchEntry, fields: Mapping[str, Any]) -> FetchEntry:
    """A file as it was when it was opened: it may have changed since it was listed, and have grown."""
    if (fields.get("s"), fields.get("m"), fields.get("mt")) == (entry.size, entry.mode, entry.mtime):
        return entry
    size, mode, mtime = _read_numbers(fields)
    if size > max(2 * entry.size, entry.size + _GROWTH):
        listed = f"which had {readable(entry.size)} when it was listed"
        raise HostError(
            f"it sends {readable(size)} of {quoted(entry.name)}, {listed}", "the same command lists it anew"
        )
    return replace(entry, size=size, mode=mode, mtime=mtime)


def _read_numbers(fields: Mapping[str, Any]) -> tuple[int, int, int]:
    """Size, mode and time: only permission bits, and numbers that this machine can store."""
    size, mode, mtime = fields.get("s"), fields.get("m"), fields.get("mt")
    if type(size) is not int or type(mode) is not int or type(mtime) is not int:
        raise HostError(_UNREADABLE)
    if not 0 <= size < _LARGEST or abs(mode) >= _LARGEST or abs(mtime) >= _LARGEST:
        raise HostError(_UNREADABLE)
    return size, mode & 0o777, mtime


def _can_be_a_path(text: str) -> bool:
    try:
        return 0 < len(encode_name(text)) <= _LONGEST_PATH and "\0" not in text
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return False


def resolve_destination(dest: str, *, single: bool) -> tuple[str, str | None]:
    """The destination directory, and the name of a single file in it; the rules are those of cp."""
    if single and not dest.endswith("/") and not os.path.isdir(dest):
        return os.path.dirname(dest) or ".", os.path.basename(dest)
    return dest or ".", None


_RECORD: Final = "record"
_FILES: Final = "files"
_KINDS: Final = {"d": "directory", "f": "file", "l": "link"}


@dataclass(frozen=True, slots=True)
class Accepted:
    """The entries of a host's list that may be written."""

    entries: tuple[FetchEntry, ...]
    single: bool
    """The path names a single file."""
    left_out: tuple[FileFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class Requested:
    """A path on a host, or all of a run."""

    path: str | None
    run: str = ""

    def accept(self, entries: Sequence[FetchEntry], *, single: bool) -> Accepted:
        """Raise a HostError that names the first entry that was not requested.

        `single` is the host's word for it that a path with wildcards is a name as it is written.
        """
        _check_tree(entries)
        if self.path is None:
            return self._accept_below(2, entries, [_is_of_run(entry, self.run) for entry in entries])
        path = encode_name(self.path)
        if is_contents(path):
            return self._accept_below(0, entries, [True] * len(entries))
        name = path.rpartition(b"/")[2]
        named = [_is_named(entry, name) for entry in entries]
        has_wildcards = glob.has_magic(path)
        if all(named) and len(entries) == 1 and entries[0].kind == "f" and (single or not has_wildcards):
            return Accepted(tuple(entries), single=True)
        if has_wildcards and not all(named):
            pattern = wildcards_of(path)
            found = [matches(pattern, entry.parts, is_directory=entry.kind == "d") for entry in entries]
            return self._accept_below(0, entries, found)
        # Everything but the directory itself lies below it, so it is either that or the one file.
        return self._accept_below(1, entries, named)

    def _accept_below(self, top: int, entries: Sequence[FetchEntry], requested_entries: Sequence[bool]) -> Accepted:
        """`top` is how many directories down a link has to stay."""
        for entry, is_requested in zip(entries, requested_entries, strict=True):
            if not is_requested:
                request = f"run {self.run}" if self.path is None else quoted(self.path)
                raise _refused(entry, f"{request} was requested")
        left_out = {entry: _outward(entry) for entry in entries if entry.kind == "l" and leads_out(entry, top)}
        kept = tuple(entry for entry in entries if entry not in left_out) if left_out else tuple(entries)
        return Accepted(kept, single=False, left_out=tuple(left_out.values()))


def is_contents(path: bytes) -> bool:
    """Whether a path means the content of a directory, without its name: `ck/`, `.`, `..`, `~`."""
    is_home = path.startswith(b"~") and b"/" not in path and not glob.has_magic(path)
    return is_home or path.rpartition(b"/")[2] in (b"", b".", b"..")


def wildcards_of(path: bytes) -> tuple[bytes, ...]:
    """The components from the first wildcard on: names sent for a pattern begin there."""
    components = posixpath.normpath(path).split(b"/")
    first = next((index for index, each in enumerate(components) if glob.has_magic(each)), len(components))
    return tuple(components[first:])


def matches(pattern: Sequence[bytes], parts: Sequence[str], *, is_directory: bool) -> bool:
    """Whether a name, or a directory above it, matches: by the rules of Python's glob, which expands it on the host."""
    length = len(pattern)
    only_directories = pattern[-1] == b"**" and any(component != b"**" for component in pattern)
    positions = _from(pattern, 0) - {length}
    for depth, part in enumerate(parts, 1):
        name, after = encode_name(part), set[int]()
        for index in positions:
            if pattern[index] == b"**":
                after |= set[int]() if name.startswith(b".") else _from(pattern, index)
            elif _matches_one(pattern[index], name):
                after |= _from(pattern, index + 1)
        if length in after:
            return is_directory or depth < len(parts) or not only_directories
        positions = after
    return False


def _from(pattern: Sequence[bytes], index: int) -> set[int]:
    """The positions where a name may continue: after each `**` too, which also matches no directory."""
    found = {index}
    while index < len(pattern) and pattern[index] == b"**":
        index += 1
        found.add(index)
    return found


def _matches_one(component: bytes, name: bytes) -> bool:
    if not glob.has_magic(component):
        return component == name
    if name.startswith(b".") and not component.startswith(b"."):
        return False
    return fnmatch.fnmatchcase(name, component)


def leads_out(link: FetchEntry, top: int) -> bool:
    """Whether a link may lead out of the directory that is `top` levels below DEST.

    A `..` behind a name leads out, too: that name may be another link, and then `..` is not the directory it is in.
    """
    steps = [step for step in link.target.split("/") if step not in ("", ".")]
    up = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    return link.target.startswith("/") or up > len(link.parts) - 1 - top or ".." in steps[up:]


def _check_tree(entries: Sequence[FetchEntry]) -> None:
    """Raise a HostError if a name occurs twice, or an entry is below a file or a link."""
    seen: dict[tuple[str, ...], str] = {}
    for entry in entries:
        if entry.parts in seen:
            raise _refused(entry, "it was listed before")
        seen[entry.parts] = entry.kind
    if all(kind == "d" for kind in seen.values()):
        return
    for entry in entries:
        for depth in range(1, len(entry.parts)):
            if seen.get(entry.parts[:depth], "d") != "d":
                raise _refused(entry, f"{quoted('/'.join(entry.parts[:depth]))} is no directory")


def _is_named(entry: FetchEntry, name: bytes) -> bool:
    """The file or directory of that name, or a thing in the directory. The link that a path names is followed there."""
    return encode_name(entry.parts[0]) == name and (len(entry.parts) > 1 or entry.kind != "l")


def _is_of_run(entry: FetchEntry, run: str) -> bool:
    if entry.parts[0] != run or len(entry.parts) == 2:
        return False
    if len(entry.parts) == 1:
        return entry.kind == "d"
    return entry.kind == "f" if entry.parts[1] == _RECORD else entry.parts[1] == _FILES


def _outward(link: FetchEntry) -> FileFailure:
    reason = f"it links to {quoted(link.target)}, which may lead out of the requested directory"
    return FileFailure(link.name, f"{reason}; to get the target, fetch the path of the target")


def _refused(entry: FetchEntry, why: str) -> HostError:
    return HostError(
        f"it sends the {_KINDS[entry.kind]} {quoted(entry.name)}, but {why}",
        "nothing of this answer was written; look at that machine before you trust it",
    )
