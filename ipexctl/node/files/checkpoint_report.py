"""A host's report of its checkpoint before an exchange, and its validation on the other side. Pure.

Lines from a host or the supervisor are not trusted: readers accept only paths below PATH and raise a ValueError.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Collection, Dict, Mapping, NamedTuple

from ipexctl.node.common.home_entries import is_plain_name
from ipexctl.node.common.json_records import decode_natural
from ipexctl.node.files.manifest import ManifestEntry

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

MAX_FILES = 10_000
_MAX_NAME = 4096
_MAX_EXCHANGES = 10**9
_MAX_TREES = 100
_MAX_RUN = 200
_SHA256 = re.compile(r"[0-9a-f]{64}")


class KnownContent(NamedTuple):
    sha256: str
    is_brought: bool
    """True if the exchange put it there and another host wrote it."""
    number: int = 0
    """First exchange that saw this content."""


KnownFiles = Dict[str, KnownContent]


class HostCopies(NamedTuple):
    copies: Mapping[str, ManifestEntry] = {}
    """Complete files; each path begins with the last part of the checkpoint's."""
    half: Mapping[str, str] = {}
    left: Mapping[str, str] = {}
    known: Mapping[str, KnownContent] = {}
    written: Collection[str] = frozenset()
    number: int = 0
    """Number of the last exchange; 0 if none."""
    named_parts: Mapping[str, Collection[str]] = {}
    """Complete file that lists others, such as `.metadata` → their names next to it."""
    place: str = ""
    """Target of PATH on this host, relative to the directory that has it by name; for another tree, the tree's name."""
    age: int = 0
    """How many exchanges there were, with the last, since its files were written; 0 unless some were put back."""
    others: tuple[HostCopies, ...] = ()
    """Reports on the project's other trees where files arrived since the last exchange."""
    damaged: str = ""
    """The new path of this host's record of earlier exchanges, if that can't be read; else empty."""
    runs: Mapping[str, str] = {}
    """File → the run that wrote it, by that run's record; without files that are no run's."""

    @property
    def since(self) -> int:
        """The exchange after which its files were written."""
        return self.number - self.age

    def to_json(self) -> Json:
        """Return the report as JSON, as `read_host_copies` reads it."""
        return {
            **self._asdict(),
            "copies": [list(entry) for entry in self.copies.values()],
            "known": {name: list(file) for name, file in self.known.items()},
            "written": sorted(self.written),
            "named_parts": {name: sorted(parts) for name, parts in self.named_parts.items()},
            "others": [other.to_json() for other in self.others],
        }

    def is_present(self, name: str) -> bool:
        """Return True if the host has a file of this name, complete or not."""
        return name in self.copies or name in self.half or name in self.left


def check_name(value: object, top: str) -> str:
    """Return the name if it is below the checkpoint's path. Raises a ValueError otherwise."""
    if isinstance(value, str) and 0 < len(value) <= _MAX_NAME and "\0" not in value:
        parts = value.split("/")
        if parts[0] == top and not any(part in ("", ".", "..") for part in parts):
            return value
    raise ValueError(f"{value!r:.80} is not a path below {top!r:.80}")


def read_copies(rows: Any, top: str) -> dict[str, ManifestEntry]:
    """Return the copies in a message. Like the functions below, raises a ValueError or TypeError unless all are
    valid."""
    copies = {}
    for path, kind, mode, size, content, mtime in _limited(rows, list):
        if kind != "f":
            raise ValueError("an entry that is no file")
        for number in (mode, size, mtime):
            decode_natural(number, "a number of a file")
        copies[check_name(path, top)] = ManifestEntry(path, "f", mode, size, _hash(content), mtime)
    return copies


def read_known(rows: Any, top: str) -> KnownFiles:
    """Return what was remembered of files: name → content. Raises a ValueError or TypeError unless all rows are
    valid."""
    return {
        check_name(name, top): KnownContent(_hash(sha256), is_brought is True, read_number(number, _MAX_EXCHANGES))
        for name, (sha256, is_brought, number) in _limited(rows, dict).items()
    }


def read_runs(rows: Any, top: str) -> dict[str, str]:
    """Return file → run in a message. The name of a run becomes a part of a path, so it has no `/` and no dot first."""
    runs = {check_name(name, top): str(run) for name, run in _limited(rows, dict).items()}
    if not all(is_plain_name(run) and len(run) <= _MAX_RUN for run in runs.values()):
        raise ValueError("a run with a name that is none")
    return runs


def read_number(value: object, most: int = _MAX_EXCHANGES - 1) -> int:
    """Return the number of an exchange. Raises a ValueError if it is larger than `most`: the last exchange's must leave
    one for the next."""
    number: int = decode_natural(value, "an exchange")
    if number > most:
        raise ValueError(f"there were never {number} exchanges")
    return number


def read_host_copies(document: Any, top: str, *, is_other: bool = False) -> HostCopies:
    """Return the report that a host has sent. Raises a ValueError, TypeError or KeyError unless all of it is valid.

    `is_other`: it is a report on another tree, which has no further ones.
    """
    others = [] if is_other else _limited(document["others"], list, _MAX_TREES)
    named_parts = _limited(document["named_parts"], dict)
    copies, known = read_copies(document["copies"], top), read_known(document["known"], top)
    written = frozenset(check_name(name, top) for name in _limited(document["written"], list))
    if not copies.keys() <= known.keys() | written:
        raise ValueError("a file that is neither known nor written")
    return HostCopies(
        copies,
        _read_reasons(document["half"], top),
        _read_reasons(document["left"], top),
        known,
        written,
        read_number(document["number"]),
        {
            check_name(name, top): frozenset(check_name(part, part) for part in _limited(parts, list))
            for name, parts in named_parts.items()
        },
        str(document["place"])[:_MAX_NAME],
        read_number(document["age"]),
        tuple(read_host_copies(other, top, is_other=True) for other in others),
        str(document["damaged"])[:_MAX_NAME],
        read_runs(document["runs"], top),
    )


def _read_reasons(rows: Any, top: str) -> dict[str, str]:
    return {check_name(name, top): str(why)[:200] for name, why in _limited(rows, dict).items()}


def _limited(value: Any, kind: type, most: int = MAX_FILES) -> Any:
    if not isinstance(value, kind) or len(value) > most:  # type: ignore[arg-type]
        raise ValueError(f"not a {kind.__name__} of at most {most} entries")
    return value


def _hash(value: object) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"{value!r:.80} is not a sha256")
    return value
