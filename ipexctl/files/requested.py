"""The source of a fetch, which listed entries were requested, and the result.

A host's list is not trusted: all of it is checked before anything is written, and names that lead out of the
destination are refused. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, cast

from ipexctl.errors import UserError
from ipexctl.hosts.host import quote
from ipexctl.node.common.checkpoint_layout import parts_of
from ipexctl.node.common.files import encode_name
from ipexctl.node.files.file_sender import is_contents, matches, split_pattern
from ipexctl.node.files.manifest import EntryKind, ManifestEntry
from ipexctl.remote.outcome import HostError, HostResult
from ipexctl.text import readable

_UNREADABLE: Final = "its list of files can't be read"
_LONGEST_PATH: Final = 4096
_LARGEST: Final = 1 << 80
"""Maximum nanoseconds that os.utime accepts."""
_GROWTH: Final = 64 << 20
"""A file may grow by this, or to twice its size, between list and transfer."""


@dataclass(frozen=True, slots=True)
class FetchSource:
    word: str
    path: str | None
    """None without a colon: all of the run."""


@dataclass(frozen=True, slots=True)
class FileFailure:
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class FetchResult(HostResult):
    source: str = ""
    dest: str = ""
    brought: tuple[str, ...] = ()
    unchanged: int = 0
    size: int = 0
    """Bytes."""
    received: int = 0
    """Bytes transferred: fewer if a part was present."""
    resumed: tuple[str, ...] = ()
    kept: int = 0
    """Bytes of resumed files that had arrived before."""
    failed: tuple[FileFailure, ...] = ()
    left_out: tuple[FileFailure, ...] = ()
    """Entries that are no file, directory or link."""
    older: tuple[str, ...] = ()
    """Files at DEST from a run's path that are older than the run."""

    bytes = property(attrgetter("size"))
    received_bytes = property(attrgetter("received"))


def parse_source(text: str) -> FetchSource:
    """A host may have an account or be an address in brackets: `me@node2:out`, `[fe80::2]:out`."""
    account, at, rest = text.rpartition("@") if "@" in text.partition(":")[0] else ("", "", text)
    if rest.startswith("["):
        word, closing, path = rest[1:].partition("]:")
        if not closing:
            raise UserError(f"{quote(text)}: a colon and a path follow an address in brackets", fix="'[fe80::2]:out/'")
        word, colon = f"{account}{at}{word}", ":"
    else:
        word, colon, path = text.partition(":")
        if word == "last" and path.partition(":")[0] == "all":
            all_runs, colon, path = path.partition(":")
            word = f"{word}:{all_runs}"
    if not word:
        raise UserError(
            f"{quote(text)} names neither a run nor a host", fix="RUN:PATH or HOST:PATH; the last run: last:PATH"
        )
    if "\0" in text:
        raise UserError(f"{quote(text)} can't be a path")
    if colon and not path:
        raise UserError(f"{quote(text)} names no path", fix=f"{word}:. is all of the directory; a run alone: {word}")
    return FetchSource(word, path if colon else None)


def read_entry(row: object) -> ManifestEntry:
    if not isinstance(row, list) or len(row) != len(ManifestEntry._fields):
        raise HostError(_UNREADABLE)
    path, kind, mode, size, content, mtime = row
    parts = path.split("/") if isinstance(path, str) and _can_be_a_path(path) else ()
    if not parts or any(part in ("", ".", "..") for part in parts):
        raise HostError(
            f"it wants to write to {quote(str(path)[:100])}: that leads out of where files are to go",
            "nothing of it was written; look at that machine before you trust it",
        )
    is_content_valid = isinstance(content, str) and (_can_be_a_path(content) if kind == "l" else not content)
    if kind not in ("d", "f", "l") or not is_content_valid:
        raise HostError(_UNREADABLE)
    size, mode, mtime = _checked_numbers(size, mode, mtime)
    return ManifestEntry(path, cast("EntryKind", kind), mode, size, content, mtime)


def update_entry(entry: ManifestEntry, fields: Mapping[str, Any]) -> ManifestEntry:
    """The file as it was when opened: it may have changed or grown since it was listed."""
    numbers = fields.get("size"), fields.get("mode"), fields.get("mtime")
    if numbers == (entry.size, entry.mode, entry.mtime):
        return entry
    size, mode, mtime = _checked_numbers(*numbers)
    if size > max(2 * entry.size, entry.size + _GROWTH):
        listed = f"which had {readable(entry.size)} when it was listed"
        raise HostError(f"it sends {readable(size)} of {quote(entry.path)}, {listed}", "run the same command again")
    return entry._replace(size=size, mode=mode, mtime=mtime)


def _checked_numbers(size: Any, mode: Any, mtime: Any) -> tuple[int, int, int]:
    """Raise a HostError for other than permission bits, and for numbers this machine can't store."""
    if not all(type(number) is int and abs(number) < _LARGEST for number in (size, mode, mtime)) or size < 0:
        raise HostError(_UNREADABLE)
    return size, mode & 0o777, mtime


def _can_be_a_path(text: str) -> bool:
    try:
        return 0 < len(encode_name(text)) <= _LONGEST_PATH and "\0" not in text
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return False


_RECORD: Final = "record"
_FILES: Final = "files"
_KINDS: Final = {"d": "directory", "f": "file", "l": "link"}


@dataclass(frozen=True, slots=True)
class AcceptedFiles:
    entries: Mapping[int, ManifestEntry]
    single: bool
    left_out: tuple[FileFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestedPath:
    path: str | None
    run: str = ""

    def accept(self, entries: Sequence[ManifestEntry], *, single: bool) -> AcceptedFiles:
        """Raise a HostError for an entry not requested. `single`: the host takes a path with wildcards literally."""
        _check_tree(entries)
        if self.path is None:
            return self._accept_below(2, entries, [_is_of_run(entry, self.run) for entry in entries])
        path = encode_name(self.path)
        if is_contents(path):
            return self._accept_below(0, entries, [True] * len(entries))
        name = path.rpartition(b"/")[2]
        named = [_is_named(entry, name) for entry in entries]
        _, pattern = split_pattern(path)
        if all(named) and len(entries) == 1 and entries[0].kind == "f" and (single or not pattern):
            return AcceptedFiles({0: entries[0]}, single=True)
        if self.run and not all(named) and self._are_parts(entries):
            return self._accept_below(0, entries, [True] * len(entries))
        if pattern and not all(named):
            found = [matches(pattern, entry.parts, is_directory=entry.kind == "d") for entry in entries]
            return self._accept_below(0, entries, found)
        # Everything but the directory itself lies below it, so it is either that or the one file.
        return self._accept_below(1, entries, named)

    def _are_parts(self, entries: Sequence[ManifestEntry]) -> bool:
        """True for files that are one checkpoint with the file that was requested."""
        names, name = [entry.path for entry in entries], (self.path or "").rpartition("/")[2]
        is_flat = all(entry.kind == "f" and len(entry.parts) == 1 for entry in entries)
        return is_flat and name in names and parts_of(name, names).issuperset(names)

    def _accept_below(
        self, top: int, entries: Sequence[ManifestEntry], requested_entries: Sequence[bool]
    ) -> AcceptedFiles:
        """`top`: directory levels a link has to stay below."""
        for entry, is_requested in zip(entries, requested_entries, strict=True):
            if not is_requested:
                request = f"run {self.run}" if self.path is None else quote(self.path)
                raise _refused(entry, f"{request} was requested")
        kept = dict(enumerate(entries))
        outward = [number for number, entry in kept.items() if entry.kind == "l" and may_lead_out(entry, top)]
        left_out = tuple(_outward(kept.pop(number)) for number in outward)
        return AcceptedFiles(kept, single=False, left_out=left_out)

    def may_grow(self, entry: ManifestEntry) -> bool:
        """True for a file of a run's record."""
        return self.path is None and entry.parts[1:2] == (_RECORD,)


def may_lead_out(link: ManifestEntry, top: int) -> bool:
    """True if a link may leave the directory `top` levels below DEST. A `..` after a name may: that may be a link."""
    steps = [step for step in link.content.split("/") if step not in ("", ".")]
    up = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    return link.content.startswith("/") or up > len(link.parts) - 1 - top or ".." in steps[up:]


def _check_tree(entries: Sequence[ManifestEntry]) -> None:
    """Raise a HostError if a name occurs twice, or an entry is below a file or link."""
    seen: dict[str, str] = {}
    for entry in entries:
        if entry.path in seen:
            raise _refused(entry, "it was listed before")
        seen[entry.path] = entry.kind
    for entry in entries:
        above = entry.path
        # What is above a listed directory is checked with that directory.
        while (above := above.rpartition("/")[0]) and (kind := seen.get(above)) != "d":
            if kind is not None:
                raise _refused(entry, f"{quote(above)} is not a directory")


def _is_named(entry: ManifestEntry, name: bytes) -> bool:
    """The file or directory of that name, or something in the directory. A link named by a path is followed there."""
    first, below, _ = entry.path.partition("/")
    return encode_name(first) == name and (bool(below) or entry.kind != "l")


def _is_of_run(entry: ManifestEntry, run: str) -> bool:
    first, *below = entry.parts
    if first != run or len(below) == 1:
        return False
    if not below:
        return entry.kind == "d"
    return entry.kind == "f" if below[0] == _RECORD else below[0] == _FILES


def _outward(link: ManifestEntry) -> FileFailure:
    reason = f"it links to {quote(link.content)}, which may lead out of the requested directory"
    return FileFailure(link.path, f"{reason}; to get the target, fetch the path of the target")


def _refused(entry: ManifestEntry, why: str) -> HostError:
    return HostError(
        f"it sends the {_KINDS[entry.kind]} {quote(entry.path)}, but {why}",
        "no file of this answer was written; check that machine before you trust it",
    )
