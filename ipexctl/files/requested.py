"""Decide which entries of a host's list are what a fetch requested; also read the source of a fetch, and define its
result.

A host's list is not trusted: all of it is checked before anything is written. A name that leads out of DEST, or an
entry that was not requested, refuses the whole answer. A symlink that may lead out is only left out.
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
"""Bytes."""
_LARGEST_NUMBER: Final = 1 << 80
"""Limit on sizes, modes and times: the most nanoseconds that os.utime accepts."""
_MOST_GROWTH: Final = 64 << 20
"""A file may grow by this, or to twice its size, between list and transfer."""


@dataclass(frozen=True, slots=True)
class FetchSource:
    """`RUN:PATH`, `HOST:PATH` or `RUN`."""

    word: str
    """The run or the host, as typed: `last`, `last:all`, a run's id, `me@node2`."""
    path: str | None
    """None without a colon: all of the run."""


@dataclass(frozen=True, slots=True)
class FileFailure:
    """A file that was not fetched, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class FetchResult(HostResult):
    """Result of a fetch from one host."""

    source: str = ""
    """Path on the host; empty if it did not answer."""
    dest: str = ""
    """Path on this machine."""
    brought: tuple[str, ...] = ()
    """Files and symlinks that were written."""
    unchanged: int = 0
    """Files and symlinks that were here already."""
    size: int = 0
    """Bytes of the files in `brought`."""
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
    """Read SRC of a fetch. A host may have an account or be an address in brackets: `me@node2:out`, `[fe80::2]:out`.

    `last:all:out` is the path `out` of `last:all`. Raises a UserError if no run or host is named, or no path after a
    colon.
    """
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
    """Return an entry of a host's list. Raises a HostError if it is malformed, or if its path leads out of DEST."""
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
    """Return a file as it was when the host opened it: it may have changed or grown since it was listed.

    `fields`: its size, mode and mtime then. Raises a HostError if the file has grown by more than `_MOST_GROWTH`
    allows, because the room on the disk was checked for the listed size.
    """
    numbers = fields.get("size"), fields.get("mode"), fields.get("mtime")
    if numbers == (entry.size, entry.mode, entry.mtime):
        return entry
    size, mode, mtime = _checked_numbers(*numbers)
    if size > max(2 * entry.size, entry.size + _MOST_GROWTH):
        listed = f"which had {readable(entry.size)} when it was listed"
        raise HostError(f"it sends {readable(size)} of {quote(entry.path)}, {listed}", "run the same command again")
    return entry._replace(size=size, mode=mode, mtime=mtime)


def _checked_numbers(size: Any, mode: Any, mtime: Any) -> tuple[int, int, int]:
    """Return size, mode and mtime; of the mode, only the permission bits.

    Raises a HostError for other values than integers, and for numbers that this machine can't store.
    """
    are_integers = all(type(number) is int and abs(number) < _LARGEST_NUMBER for number in (size, mode, mtime))
    if not are_integers or size < 0:
        raise HostError(_UNREADABLE)
    return size, mode & 0o777, mtime


def _can_be_a_path(text: str) -> bool:
    """True if the text can be given to the system as a path; where it leads is not checked."""
    try:
        return 0 < len(encode_name(text)) <= _LONGEST_PATH and "\0" not in text
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        return False


_RECORD: Final = "record"
_FILES: Final = "files"
"""Directories of a whole run that is fetched, `RUN/record` and `RUN/files`: ipexctl's records, the run's own files."""
_KINDS: Final = {"d": "directory", "f": "file", "l": "link"}


@dataclass(frozen=True, slots=True)
class AcceptedFiles:
    """Entries of a host's list that may be written."""

    entries: Mapping[int, ManifestEntry]
    """Number in the list → the entry."""
    single: bool
    """True if the answer is the one file that was requested, which may get another name here."""
    left_out: tuple[FileFailure, ...] = ()
    """Symlinks that may lead out of the requested directory."""


@dataclass(frozen=True, slots=True)
class RequestedPath:
    """What a fetch requests from a host."""

    path: str | None
    """A path or a pattern; None for all of a run."""
    run: str = ""
    """Id of the run; empty for a path of a host."""

    def accept(self, entries: Sequence[ManifestEntry], *, single: bool) -> AcceptedFiles:
        """Return the entries that may be written. Raises a HostError if one of them was not requested.

        `single`: the host says that the path is one file, also if it contains wildcards.
        """
        _check_tree(entries)
        if self.path is None:
            return self._accept_below(2, entries, [_is_of_run(entry, self.run) for entry in entries])
        path = encode_name(self.path)
        if is_contents(path):
            return self._accept_below(0, entries, [True] * len(entries))
        name = path.rpartition(b"/")[2]
        have_name = [_is_named(entry, name) for entry in entries]
        _, pattern = split_pattern(path)
        is_one_file = all(have_name) and len(entries) == 1 and entries[0].kind == "f"
        if is_one_file and (single or not pattern):
            return AcceptedFiles({0: entries[0]}, single=True)
        if self.run and not all(have_name) and self._are_parts(entries):
            return self._accept_below(0, entries, [True] * len(entries))
        if pattern and not all(have_name):
            are_matches = [matches(pattern, entry.parts, is_directory=entry.kind == "d") for entry in entries]
            return self._accept_below(0, entries, are_matches)
        # Everything but the directory itself lies below it, so it is either that or the one file.
        return self._accept_below(1, entries, have_name)

    def _are_parts(self, entries: Sequence[ManifestEntry]) -> bool:
        """True for files that are one checkpoint with the file that was requested."""
        names, name = [entry.path for entry in entries], (self.path or "").rpartition("/")[2]
        is_flat = all(entry.kind == "f" and len(entry.parts) == 1 for entry in entries)
        return is_flat and name in names and parts_of(name, names).issuperset(names)

    def _accept_below(
        self, top: int, entries: Sequence[ManifestEntry], requested_entries: Sequence[bool]
    ) -> AcceptedFiles:
        """Return all entries but symlinks that may lead out. Raises a HostError if an entry was not requested.

        `top`: number of directories at the beginning of its path that a symlink must not leave: 1 for a directory that
        was requested by name, 2 for `RUN/files`.
        """
        for entry, is_requested in zip(entries, requested_entries, strict=True):
            if not is_requested:
                request = f"run {self.run}" if self.path is None else quote(self.path)
                raise _refused(entry, f"{request} was requested")
        kept = dict(enumerate(entries))
        outward = [number for number, entry in kept.items() if entry.kind == "l" and may_lead_out(entry, top)]
        left_out = tuple(_outward(kept.pop(number)) for number in outward)
        return AcceptedFiles(kept, single=False, left_out=left_out)

    def may_grow(self, entry: ManifestEntry) -> bool:
        """True for a file of a run's record: a log of a run that goes on only grows."""
        return self.path is None and entry.parts[1:2] == (_RECORD,)


def may_lead_out(link: ManifestEntry, top: int) -> bool:
    """True if a symlink may leave the directory that is `top` levels below DEST.

    A `..` after a name may do so, because that name may be a symlink itself.
    """
    steps = [step for step in link.content.split("/") if step not in ("", ".")]
    up = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    return link.content.startswith("/") or up > len(link.parts) - 1 - top or ".." in steps[up:]


def _check_tree(entries: Sequence[ManifestEntry]) -> None:
    """Refuse a list in which a path occurs twice, or an entry is below a file or a symlink."""
    kinds: dict[str, str] = {}
    for entry in entries:
        if entry.path in kinds:
            raise _refused(entry, "it was listed before")
        kinds[entry.path] = entry.kind
    for entry in entries:
        parent = entry.path
        # What is above a listed directory is checked with that directory.
        while (parent := parent.rpartition("/")[0]) and (kind := kinds.get(parent)) != "d":
            if kind is not None:
                raise _refused(entry, f"{quote(parent)} is not a directory")


def _is_named(entry: ManifestEntry, name: bytes) -> bool:
    """True for the file or directory of that name, and for what is in the directory.

    False for a symlink of that name: the host follows a symlink that the requested path names.
    """
    first, below, _ = entry.path.partition("/")
    return encode_name(first) == name and (bool(below) or entry.kind != "l")


def _is_of_run(entry: ManifestEntry, run: str) -> bool:
    """True for the run's directory, for regular files below `RUN/record`, and for all below `RUN/files`."""
    first, *below = entry.parts
    if first != run or len(below) == 1:
        return False
    if not below:
        return entry.kind == "d"
    return entry.kind == "f" if below[0] == _RECORD else below[0] == _FILES


def _outward(link: ManifestEntry) -> FileFailure:
    """Return why a symlink that may lead out is left out."""
    reason = f"it links to {quote(link.content)}, which may lead out of the requested directory"
    return FileFailure(link.path, f"{reason}; to get the target, fetch the path of the target")


def _refused(entry: ManifestEntry, why: str) -> HostError:
    """Return the error for an answer of which nothing is written, because of this entry."""
    return HostError(
        f"it sends the {_KINDS[entry.kind]} {quote(entry.path)}, but {why}",
        "no file of this answer was written; check that machine before you trust it",
    )
