"""Decides which host's copy of each checkpoint file all hosts get. Pure.

A host reports its copies, and those it had after the last exchange. A copy that changed since then wins over one that
did not, whatever the clocks say; among several, the newest does. A half-written copy never wins. A file that the host
which wrote it has deleted since is removed on the others, where an exchange had put it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple

from ipexctl.node.common.json_records import NATURAL, decode

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

MAX_FILES = 10_000
_MAX_NAME = 4096
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = re.compile(r"\.?tmp.*|.*\.(tmp|temp)([._-].*)?|.*\.(part|partial|incomplete|swp)|.*~|\.nfs.*", re.DOTALL)

FIELD_DECODERS = NATURAL


class Copy(NamedTuple):
    """A complete file of one host."""

    name: str
    """It begins with the last part of the checkpoint's path."""
    size: int
    mtime_ns: int
    mode: int
    sha256: str


class Known(NamedTuple):
    """A file as a host had it after the last exchange."""

    sha256: str
    is_brought: bool
    """The exchange put it there; another host wrote it."""


KnownFiles = Dict[str, Known]


class HostCopies(NamedTuple):
    """The report of one host."""

    copies: Mapping[str, Copy] = {}
    incomplete: Mapping[str, str] = {}
    """Files that are not brought → why."""
    known: Mapping[str, Known] = {}

    def to_json(self) -> Json:
        return self._replace(copies=list(self.copies.values()))._asdict()  # type: ignore[arg-type]


class Transfer(NamedTuple):
    source: str
    target: str
    copies: tuple[Copy, ...]


class ExchangePlan(NamedTuple):
    transfers: tuple[Transfer, ...]
    removals: Mapping[str, tuple[str, ...]]
    """Host → the files to remove there."""
    known: Mapping[str, KnownFiles]
    """Host → its files after the exchange."""


def plan_exchange(reports: Mapping[str, HostCopies]) -> ExchangePlan:
    """The changes after which all hosts have the same files. The order of the hosts decides between equal times."""
    transfers: dict[tuple[str, str], list[Copy]] = {}
    removals: dict[str, list[str]] = {}
    known: dict[str, KnownFiles] = {host: {} for host in reports}
    for name in sorted({name for report in reports.values() for name in report.copies}):
        source = _choose_source(name, reports)
        if source is None:
            for host, report in reports.items():
                if name in report.copies and report.known[name].is_brought:
                    removals.setdefault(host, []).append(name)
            continue
        winner = reports[source].copies[name]
        for host, report in reports.items():
            copy, before = report.copies.get(name), report.known.get(name)
            is_there = copy is not None and copy.sha256 == winner.sha256
            if not is_there:
                transfers.setdefault((source, host), []).append(winner)
            is_old = is_there and (before is None or before.sha256 != winner.sha256 or not before.is_brought)
            known[host][name] = Known(winner.sha256, not is_old)
    return ExchangePlan(
        tuple(Transfer(*hosts, tuple(copies)) for hosts, copies in transfers.items()),
        {host: tuple(names) for host, names in removals.items()},
        known,
    )


def _choose_source(name: str, reports: Mapping[str, HostCopies]) -> str | None:
    """The host whose copy all get; None if the host that wrote the file has deleted it."""
    holders = [host for host, report in reports.items() if name in report.copies]
    changed = [
        host
        for host in holders
        if name not in reports[host].known or reports[host].known[name].sha256 != reports[host].copies[name].sha256
    ]
    is_deleted = any(
        name in report.known
        and not report.known[name].is_brought
        and name not in report.copies
        and name not in report.incomplete
        for report in reports.values()
    )
    if not changed and is_deleted:
        return None
    return max(changed or holders, key=lambda host: reports[host].copies[name].mtime_ns)


def is_temporary(part: str) -> bool:
    """Whether a part of a path has a name that programs give to files they are still writing."""
    return _TEMPORARY.fullmatch(part) is not None


def check_name(value: object, top: str) -> str:
    """A name below the checkpoint's path; raises a ValueError for any other."""
    if isinstance(value, str) and 0 < len(value) <= _MAX_NAME and "\0" not in value:
        parts = value.split("/")
        if parts[0] == top and not any(part in ("", ".", "..") for part in parts):
            return value
    raise ValueError(f"{value!r:.80} is no name below {top!r:.80}")


def read_copies(rows: Any, top: str) -> dict[str, Copy]:
    """Copies in a message; raises a ValueError unless each is valid, like the functions below."""
    copies = {}
    for row in _rows(rows, len(Copy._fields)):
        copy = decode(Copy, dict(zip(Copy._fields, row)), "a file")
        _hash(copy.sha256)
        copies[check_name(copy.name, top)] = copy
    return copies


def read_known(rows: Any, top: str) -> KnownFiles:
    entries = rows.items() if isinstance(rows, dict) else ()
    return {
        check_name(name, top): Known(_hash(sha256), is_brought is True)
        for name, (sha256, is_brought) in zip((name for name, _ in entries), _rows([row for _, row in entries], 2))
    }


def read_host_copies(document: Any, top: str) -> HostCopies:
    incomplete = document["incomplete"]
    if not isinstance(incomplete, dict) or len(incomplete) > MAX_FILES:
        raise ValueError("incomplete is not valid")
    return HostCopies(
        read_copies(document["copies"], top),
        {check_name(name, top): str(why)[:200] for name, why in incomplete.items()},
        read_known(document["known"], top),
    )


def _rows(rows: Any, length: int) -> list[list[Any]]:
    if not isinstance(rows, list) or len(rows) > MAX_FILES:
        raise ValueError(f"more than {MAX_FILES} files, or none at all")
    if not all(isinstance(row, list) and len(row) == length for row in rows):
        raise ValueError("a file without all its fields")
    return rows


def _hash(value: object) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"{value!r:.80} is no sha256")
    return value
