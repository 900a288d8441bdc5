"""Decides which host's copy of each checkpoint file all hosts get, and which files are set aside. Pure.

A host reports its copies, and those it had after the last exchange. The rules, by which nothing comes back that its
main writer has deleted, and nothing whole goes for something that is not:

1. A copy that changed since the last exchange wins over one that did not, whatever the clocks say; among several, the
   newest does. A half-written copy never wins.
2. A file that the host which wrote it has deleted since is removed on the others, where an exchange had put it.
3. A directory below the checkpoint's path that its main writer has deleted is removed on all hosts, with what other
   ranks wrote into it. The main writer is the host that wrote most of its files that are not of one rank.
4. A directory that a framework wrote (`checkpoint_layout.py`) is exchanged only if all hosts together have it whole,
   with each file that its own list names: the host of the rest may not take part.
   If a deletion has left it in part and the other hosts have the rest, it is completed; if its save did not end and
   other hosts have its last whole state, that state wins. Else it is set aside. So is a directory in which only the
   files of some ranks are left, while those beside it have files of their main writer.
5. A file in such a directory that no rank wrote, by its name, stays where it is, and is brought to no other host.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Collection, Dict, Iterator, Mapping, NamedTuple

from ipexctl.node.common.json_records import decode_natural
from ipexctl.node.files.checkpoint_layout import (
    Checkpoint,
    find_checkpoints,
    is_of_a_framework,
    is_of_a_rank,
    is_weights,
)
from ipexctl.node.files.manifest import ManifestEntry

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

MAX_FILES = 10_000
_MAX_NAME = 4096
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = re.compile(r"\.?tmp.*|.*\.(tmp|temp)([._-].*)?|.*\.(part|partial|incomplete|swp)|.*~|\.nfs.*", re.DOTALL)

_DIGITS = re.compile(r"[0-9]+")


class Known(NamedTuple):
    """A file as a host had it after the last exchange."""

    sha256: str
    is_brought: bool
    """The exchange put it there; another host wrote it."""


KnownFiles = Dict[str, Known]


class HostCopies(NamedTuple):
    """The report of one host."""

    copies: Mapping[str, ManifestEntry] = {}
    """The complete files; a path begins with the last part of the checkpoint's."""
    incomplete: Mapping[str, str] = {}
    """Files that are not brought → why."""
    known: Mapping[str, Known] = {}
    kept: Collection[str] = frozenset()
    """Files that stayed on this host alone at the last exchange (rule 5)."""
    named_parts: Mapping[str, Collection[str]] = {}
    """A complete file that lists others, as `.metadata` does → their names, beside it."""
    place: str = ""
    """Where PATH leads on this host, from the directory that has it by its name."""

    def to_json(self) -> Json:
        named_parts = {name: sorted(parts) for name, parts in self.named_parts.items()}
        copies = list(self.copies.values())
        return {**self._asdict(), "copies": copies, "kept": sorted(self.kept), "named_parts": named_parts}

    def is_unchanged(self, name: str) -> bool:
        """Whether the file is as it was after the last exchange."""
        return name in self.copies and name in self.known and self.copies[name].content == self.known[name].sha256

    def is_present(self, name: str) -> bool:
        return name in self.copies or name in self.incomplete

    def is_brought(self, name: str) -> bool:
        """Whether the file is there as an exchange has put it there."""
        return self.is_unchanged(name) and self.known[name].is_brought

    def wrote(self, name: str) -> bool:
        """Whether a rank of this host wrote the file, which may be deleted by now."""
        known = self.known.get(name)
        if known is None or (known.is_brought and self.is_present(name)):
            return self.is_present(name) and not self.is_brought(name)
        return not known.is_brought


class Transfer(NamedTuple):
    source: str
    target: str
    copies: tuple[ManifestEntry, ...]


class ExchangePlan(NamedTuple):
    transfers: tuple[Transfer, ...]
    removals: Mapping[str, tuple[str, ...]]
    """Host → the files to set aside there; one that is also brought there is replaced."""
    known: Mapping[str, KnownFiles]
    """Host → its files after the exchange."""
    kept: Mapping[str, tuple[str, ...]] = {}
    """Host → the files that stay there alone."""
    parts: tuple[str, ...] = ()
    """Directories that are not whole on all hosts together."""
    deleted: Mapping[str, str] = {}
    """Directories that are set aside → the main writer, which has deleted them."""
    unfinished: Mapping[str, str] = {}
    """Directories whose last save did not end → the host where it began."""


def plan_exchange(reports: Mapping[str, HostCopies]) -> ExchangePlan:
    """The changes after which all hosts have the same files. The order of the hosts decides between equal times."""
    planner = _Planner(reports)
    planner.set_deleted_directories_aside()
    planner.choose_sources()
    planner.complete_checkpoints()
    planner.undo_unfinished_saves()
    planner.set_parts_aside()
    return planner.plan()


class _Planner:
    """The files of all hosts while a plan is made: each step takes some out, or chooses other sources."""

    def __init__(self, reports: Mapping[str, HostCopies]) -> None:
        self._reports = reports
        self._names = sorted({name for report in reports.values() for name in (*report.copies, *report.incomplete)})
        known = {name for report in reports.values() for name in report.known}
        self._top = self._names[0].partition("/")[0] if self._names else ""
        self._below: dict[str, list[str]] = {}
        """Directory below the top → the files in and below it, also deleted ones."""
        for name in sorted(known.union(self._names)):
            for directory in _directories_of(name.rpartition("/")[0]):
                self._below.setdefault(directory, []).append(name)
        self._families = frozenset(_families_of_ranks(reports))
        self._sources: dict[str, str] = {}
        """File → the host whose copy all get."""
        self._aside: dict[str, set[str]] = {host: set() for host in reports}
        self._replaced: dict[str, set[str]] = {host: set() for host in reports}
        """Host → the files of which the old content is set aside."""
        self._kept = {host: self._still_kept(host) for host in reports}
        self._parts: list[str] = []
        self._deleted: dict[str, str] = {}
        self._unfinished: dict[str, str] = {}

    def _still_kept(self, host: str) -> set[str]:
        """A file is kept until it changes or another host has one of its name."""
        others = [report for name, report in self._reports.items() if name != host]
        return {
            name
            for name in self._reports[host].kept
            if self._reports[host].is_unchanged(name) and not any(report.is_present(name) for report in others)
        }

    def _is_of_a_rank(self, name: str) -> bool:
        return is_of_a_rank(name) or _DIGITS.sub("#", name) in self._families

    def _takes_part(self, host: str, name: str) -> bool:
        return name in self._reports[host].copies and name not in self._aside[host] and name not in self._kept[host]

    def _has(self, host: str, copy: ManifestEntry) -> bool:
        return copy.path in self._reports[host].copies and self._reports[host].copies[copy.path].content == copy.content

    def _take_out(self, host: str, name: str, *, is_removable: bool) -> None:
        if self._reports[host].is_present(name):
            (self._aside if is_removable else self._kept)[host].add(name)

    def set_deleted_directories_aside(self) -> None:
        """Rule 3."""
        for directory in sorted(self._below):  # the outer ones first
            main = self._main_writer(directory)
            if main is None or any(above in self._deleted for above in _directories_of(directory)):
                continue
            if not self._is_deleted(directory, main):
                continue
            names, report = self._below[directory], self._reports[main]
            of_main = {name for name in names if name in report.known and not report.known[name].is_brought}
            is_new = any(report.is_present(name) for name in names)
            is_of_another = any(
                name in of_main
                and name in other.copies
                and not other.is_unchanged(name)
                and not self._is_of_a_rank(name)
                for name in names
                for other in self._reports.values()
            )
            if is_of_another and not is_new:
                continue
            self._deleted[directory] = main
            for host, other in self._reports.items():
                for name in names:
                    if is_new and not other.is_unchanged(name):
                        continue
                    is_removable = other.is_brought(name) or name in of_main or self._is_of_a_rank(name)
                    if is_removable or not is_new:
                        self._take_out(host, name, is_removable=is_removable)

    def _main_writer(self, directory: str) -> str | None:
        """The host that wrote the directory before the last exchange, apart from the files of single ranks."""
        own = {
            host: [
                name for name in self._below[directory] if name in report.known and not report.known[name].is_brought
            ]
            for host, report in self._reports.items()
        }
        counts = {host: sum(not self._is_of_a_rank(name) for name in names) for host, names in own.items()}
        main = max(counts, key=lambda host: counts[host], default=None)
        if main is not None and counts[main]:
            return main
        writers = [host for host, names in own.items() if names]
        if len(writers) < 2:
            return None
        main = min(writers, key=lambda host: min(map(_natural, own[host])))
        return main if self._writers_beside[_DIGITS.sub("#", directory)][main] - {directory} else None

    @functools.cached_property
    def _writers_beside(self) -> dict[str, dict[str, set[str]]]:
        """The name of directories without its numbers → host → those in which it wrote a file."""
        found: dict[str, dict[str, set[str]]] = {}
        for directory, names in self._below.items():
            hosts = found.setdefault(_DIGITS.sub("#", directory), {host: set() for host in self._reports})
            for host, report in self._reports.items():
                if any(map(report.wrote, names)):
                    hosts[host].add(directory)
        return found

    def _is_deleted(self, directory: str, main: str) -> bool:
        """Whether nothing of the directory is on its main writer as it was there."""
        report = self._reports[main]
        names = [name for name in self._below[directory] if name in report.known]
        return not any(name in report.incomplete or report.is_unchanged(name) for name in names)

    def choose_sources(self) -> None:
        for name in self._names:
            self._choose_source(name, self._is_deleted_by_writer(name))

    def _choose_source(self, name: str, is_deleted: bool) -> None:
        """Rules 1 and 2."""
        holders = self._holders(name)
        changed = [host for host in holders if not self._reports[host].is_unchanged(name)]
        if holders and (changed or not is_deleted):
            self._sources[name] = self._newest_holder(name, changed or holders)

    def _holders(self, name: str) -> list[str]:
        return [host for host in self._reports if self._takes_part(host, name)]

    def _newest_holder(self, name: str, holders: Collection[str]) -> str:
        return max(holders, key=lambda host: self._reports[host].copies[name].mtime)

    def _find_checkpoints(self, sources: Mapping[str, str], half: Collection[str] = ()) -> dict[str, Checkpoint]:
        """The checkpoints of these files, each as its host has it."""
        named_parts = {
            name: self._reports[host].named_parts[name]
            for name, host in sources.items()
            if name in self._reports[host].named_parts
        }
        return find_checkpoints(sources, self._top, half, named_parts)

    def _is_deleted_by_writer(self, name: str) -> bool:
        return any(
            name in report.known and not report.known[name].is_brought and not report.is_present(name)
            for report in self._reports.values()
        )

    def _members(self, directory: str) -> list[str]:
        """The files of a checkpoint; of the top, those directly in it."""
        if directory == self._top:
            return [name for name in self._names if name.rpartition("/")[0] == directory]
        return self._below[directory]

    def complete_checkpoints(self) -> None:
        """A deletion that leaves a checkpoint in part does not count where the hosts have the rest (rule 4)."""
        left = self._find_checkpoints(self._sources)
        holders = {name: self._newest_holder(name, self._holders(name)) for name in self._names if self._holders(name)}
        for directory, checkpoint in self._find_checkpoints(holders).items():
            members = self._members(directory)
            is_left = directory in left and left[directory].is_whole
            if checkpoint.is_whole and not is_left and any(name in self._sources for name in members):
                for name in members:
                    self._choose_source(name, is_deleted=False)

    def undo_unfinished_saves(self) -> None:
        """The last whole state of a checkpoint wins over a save into the same directory that did not end (rule 4)."""
        for directory, checkpoint in self._find_checkpoints(self._sources).items():
            host = self._began_save(directory, checkpoint.marker) if checkpoint.is_whole else None
            if host is None:
                continue
            before = self._last_state(directory, host)
            states = self._find_checkpoints(before)
            if directory not in states or not states[directory].is_whole:
                continue
            self._unfinished[directory] = host
            for name in self._members(directory):
                self._sources.pop(name, None)
                if name in before:
                    self._sources[name] = before[name]
                for other, report in self._reports.items():
                    if name not in before:
                        self._take_out(other, name, is_removable=is_of_a_framework(name))
                    elif report.is_present(name) and not self._has(other, self._reports[before[name]].copies[name]):
                        self._replaced[other].add(name)

    def _began_save(self, directory: str, marker: str) -> str | None:
        """The host whose marker is older than its weights: it wrote those anew, and was ended before the marker."""
        for host, report in self._reports.items():
            if not report.is_unchanged(marker) or report.known[marker].is_brought:
                continue
            for name in self._members(directory):
                is_new = name in report.known and name in report.copies and not report.is_unchanged(name)
                if is_new and is_weights(name) and report.copies[name].mtime > report.copies[marker].mtime:
                    return host
        return None

    def _last_state(self, directory: str, host: str) -> dict[str, str]:
        """File → a host that has it as all hosts had it after the last exchange."""
        known = self._reports[host].known
        return {
            name: other
            for name in self._members(directory)
            for other, report in self._reports.items()
            if report.is_unchanged(name) and (name not in known or report.known[name].sha256 == known[name].sha256)
        }

    def set_parts_aside(self) -> None:
        """Rule 4."""
        half = {name for report in self._reports.values() for name in report.incomplete} - set(self._sources)
        found = self._find_checkpoints(self._sources, half)
        parts = [directory for directory, checkpoint in found.items() if not checkpoint.is_whole]
        parts += [directory for directory in sorted(self._below) if self._lacks_main_writer(directory, found)]
        for directory in parts:
            if any(above in self._parts for above in _directories_of(directory)):
                continue
            self._parts.append(directory)
            for name in self._members(directory):
                self._sources.pop(name, None)
                for host, report in self._reports.items():
                    is_of_ranks = self._is_of_a_rank(name) or (directory in found and is_of_a_framework(name))
                    if name not in self._kept[host]:
                        self._take_out(host, name, is_removable=report.is_brought(name) or is_of_ranks)

    def _lacks_main_writer(self, directory: str, found: Mapping[str, object]) -> bool:
        """Whether a directory of no known format has only files of other ranks than the directories beside it."""
        names = [name for name in self._below[directory] if name in self._sources]
        is_of_framework = any(above in found for above in _directories_of(directory))
        if not names or is_of_framework or not all(map(self._is_of_a_rank, names)):
            return False
        mains = self._mains_beside.get(_DIGITS.sub("#", directory), set())
        return bool(mains) and not any(
            self._writer(name) in mains or any(main and name in self._reports[main].known for main in mains)
            for name in names
        )

    @functools.cached_property
    def _mains_beside(self) -> dict[str, set[str]]:
        """The name of directories without its numbers → the hosts that wrote most files there which are of no rank."""
        found: dict[str, set[str]] = {}
        for directory, names in self._below.items():
            writers = [self._writer(name) for name in names if name in self._sources and not self._is_of_a_rank(name)]
            if writers:
                found.setdefault(_DIGITS.sub("#", directory), set()).add(max(writers, key=writers.count))
        return found

    def _writer(self, name: str) -> str:
        """The host that wrote a file; empty if it takes no part."""
        return next((host for host, report in self._reports.items() if report.wrote(name)), "")

    def plan(self) -> ExchangePlan:
        transfers: dict[tuple[str, str], list[ManifestEntry]] = {}
        known: dict[str, KnownFiles] = {host: {} for host in self._reports}
        for name in self._names:
            source = self._sources.get(name)
            winner = self._reports[source].copies[name] if source is not None else None
            for host, report in self._reports.items():
                if winner is None:
                    if self._takes_part(host, name):
                        self._take_out(host, name, is_removable=report.is_brought(name))
                    if name in self._kept[host] and name in report.copies:
                        known[host][name] = Known(report.copies[name].content, is_brought=False)
                    continue
                is_there, before = self._has(host, winner), report.known.get(name)
                self._aside[host].discard(name)
                self._kept[host].discard(name)
                if not is_there:
                    transfers.setdefault((str(source), host), []).append(winner)
                is_old = is_there and (before is None or before.sha256 != winner.content or not before.is_brought)
                known[host][name] = Known(winner.content, not is_old)
        aside_files = {host: names | self._replaced[host] for host, names in self._aside.items()}
        return ExchangePlan(
            tuple(Transfer(*hosts, tuple(copies)) for hosts, copies in transfers.items()),
            {host: tuple(sorted(names)) for host, names in aside_files.items() if names},
            known,
            {host: tuple(sorted(names)) for host, names in self._kept.items() if names},
            tuple(self._parts),
            self._deleted,
            self._unfinished,
        )


def _families_of_ranks(reports: Mapping[str, HostCopies]) -> Iterator[str]:
    """Names without their numbers of which hosts wrote different ones in a directory, as `rank0.pt` and `rank1.pt`."""
    written: dict[tuple[str, str], dict[str, set[str]]] = {}
    for host, report in reports.items():
        for name in {*report.known, *report.copies, *report.incomplete}:
            directory, _, last = name.rpartition("/")
            if _DIGITS.search(last) and report.wrote(name):
                written.setdefault((directory, _DIGITS.sub("#", name)), {}).setdefault(host, set()).add(last)
    for (_, family), hosts in written.items():
        sets = list(hosts.values())
        if any(a.isdisjoint(b) for number, a in enumerate(sets) for b in sets[:number]):
            yield family


def _directories_of(directory: str) -> Iterator[str]:
    """A directory and those above it, without the top; the outer ones first."""
    parts = directory.split("/")
    return ("/".join(parts[:count]) for count in range(2, len(parts) + 1))


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split("([0-9]+)", name)]


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


def read_copies(rows: Any, top: str) -> dict[str, ManifestEntry]:
    """Copies in a message; raises a ValueError unless each is valid, like the functions below."""
    copies = {}
    for row in _rows(rows, len(ManifestEntry._fields)):
        copy = ManifestEntry(*row)
        if copy.kind != "f":
            raise ValueError("an entry that is no file")
        for number in (copy.mode, copy.size, copy.mtime):
            decode_natural(number, "a number of a file")
        _hash(copy.content)
        copies[check_name(copy.path, top)] = copy
    return copies


def read_known(rows: Any, top: str) -> KnownFiles:
    entries = rows.items() if isinstance(rows, dict) else ()
    return {
        check_name(name, top): Known(_hash(sha256), is_brought is True)
        for name, (sha256, is_brought) in zip((name for name, _ in entries), _rows([row for _, row in entries], 2))
    }


def read_host_copies(document: Any, top: str) -> HostCopies:
    incomplete, kept = document["incomplete"], document["kept"]
    if not isinstance(kept, list) or len(kept) > MAX_FILES:
        raise ValueError("kept is not valid")
    if not isinstance(incomplete, dict) or len(incomplete) > MAX_FILES:
        raise ValueError("incomplete is not valid")
    return HostCopies(
        read_copies(document["copies"], top),
        {check_name(name, top): str(why)[:200] for name, why in incomplete.items()},
        read_known(document["known"], top),
        frozenset(check_name(name, top) for name in kept),
        _read_named_parts(document["named_parts"], top),
        str(document["place"])[:4096],
    )


def _read_named_parts(rows: Any, top: str) -> dict[str, frozenset[str]]:
    if not isinstance(rows, dict) or len(rows) > MAX_FILES:
        raise ValueError("named_parts is not valid")
    if not all(isinstance(parts, list) and len(parts) <= MAX_FILES for parts in rows.values()):
        raise ValueError("a list of parts is not valid")
    return {check_name(name, top): frozenset(check_name(part, part) for part in parts) for name, parts in rows.items()}


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
