"""Decides from the hosts' reports which checkpoints all hosts get, and which files are set aside. Pure.

A unit is a file, or the outermost directory that `checkpoint_layout` recognises. A copy is what one host has of a unit,
with the parts that ranks on other hosts wrote.

1. The newest complete copy of a unit goes to all hosts; files are never picked one by one by time, and those of another
   run than the marker's are left out. A copy written after an exchange is newer than any which that exchange saw,
   whatever the clocks say.
2. A directory is complete with its marker, all the layout asks for, and no half-written file. If weights were written
   since the last exchange and the marker is older, that save did not finish.
3. A rank's part comes from the host that wrote it. It does not count if it is from an older save, or if several hosts
   wrote it with different contents.
4. A unit without a complete copy is set aside on every host, and so is a half-written file. Older units stay.
5. If the host that wrote a unit deleted it, the others set it aside, as `save_total_limit` wants. If that host takes no
   part, the unit stays.
6. Empty and unreadable files stay: they may be the script's markers. In a complete directory, so do files that no
   framework writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, Mapping, NamedTuple, Sequence

from ipexctl.node.common.checkpoint_layout import (
    directories_above,
    find_checkpoints,
    is_of_a_framework,
    is_of_a_rank,
    is_weights,
)
from ipexctl.node.files.checkpoint_report import HostCopies, KnownContent, KnownFiles

if TYPE_CHECKING:
    from ipexctl.node.files.manifest import ManifestEntry


class Transfer(NamedTuple):
    source: str
    target: str
    copies: tuple[ManifestEntry, ...]
    tree: str = ""
    """Source's other tree that has the files; empty for the run's own tree."""


class ExchangePlan(NamedTuple):
    transfers: tuple[Transfer, ...]
    removals: Mapping[str, tuple[str, ...]]
    """Host → files to set aside before the received ones are put in place."""
    known: Mapping[str, KnownFiles]
    number: int
    """Number of this exchange, higher than any earlier one of these hosts."""
    markers: tuple[str, ...] = ()
    """Files put in place last: without its marker, a directory counts as half-written."""
    parts: tuple[str, ...] = ()
    deleted: Mapping[str, str] = {}
    """Units set aside → the host that wrote and then deleted them."""


class _Unit(NamedTuple):
    marker: str
    """File that is written last; for a single file, itself."""
    names: tuple[str, ...]
    directory: str = ""


class _Holder(NamedTuple):
    host: str
    report: HostCopies
    tree: str = ""


class _Copy(NamedTuple):
    holder: _Holder
    """Who has the marker."""
    marker: ManifestEntry
    files: Mapping[str, _Holder]
    number: int | None
    """First exchange that saw it; None if written since the last one."""

    @property
    def is_own(self) -> bool:
        return self.number is None or not self.holder.report.known[self.marker.path].is_brought


def plan_exchange(reports: Mapping[str, HostCopies]) -> ExchangePlan:
    """Return the changes after which all hosts have the same units. The order of the hosts decides between equal
    copies."""
    planner = _Planner(reports)
    for unit in planner.units():
        planner.decide(unit)
    return planner.plan()


class _Planner:
    def __init__(self, reports: Mapping[str, HostCopies]) -> None:
        self._reports = reports
        self._holders = [_Holder(host, report) for host, report in reports.items()]
        self._holders += [
            _Holder(host, other, other.place) for host, report in reports.items() for other in report.others
        ]
        self._number = 1 + max((report.number for report in reports.values()), default=0)
        self._transfers: dict[tuple[str, str, str], list[ManifestEntry]] = {}
        self._aside: dict[str, set[str]] = {host: set() for host in reports}
        self._known: dict[str, KnownFiles] = {host: {} for host in reports}
        self._markers: list[str] = []
        self._parts: list[str] = []
        self._deleted: dict[str, str] = {}

    def units(self) -> Iterator[_Unit]:
        reports = [holder.report for holder in self._holders]
        copies = {name for report in reports for name in report.copies}
        half = {name for report in reports for name in report.half}
        names = sorted(copies.union(half, *(report.left for report in reports)))
        self._top = names[0].partition("/")[0] if names else ""
        checkpoints = find_checkpoints(copies, self._top, half)
        members: dict[str, list[str]] = {}
        for name in names:
            directories = [directory for directory in directories_above(name) if directory in checkpoints]
            if directories[-1:] == [self._top] and name.count("/") > 1:
                directories.pop()  # only files directly in PATH belong to it
            members.setdefault(directories[-1] if directories else name, []).append(name)
        for unit, files in members.items():
            checkpoint = checkpoints.get(unit)
            yield _Unit(checkpoint.marker, tuple(files), unit) if checkpoint else _Unit(unit, (unit,))

    def decide(self, unit: _Unit) -> None:
        copies = list(self._whole_copies(unit))
        if not any(copy.number is None for copy in copies) and (writer := self._deleted_by(unit)):
            self._deleted[unit.directory or unit.marker] = writer
        elif copies:
            self._bring(unit, _newest(copies))
            return
        elif unit.directory:
            self._parts.append(unit.directory)
        for host, report in self._reports.items():
            gone = {*report.copies, *report.half, *(report.left if unit.directory else ())}
            self._aside[host].update(gone.intersection(unit.names))

    def _deleted_by(self, unit: _Unit) -> str:
        """Return the host that wrote the unit and deleted it (rule 5); empty if none, or if another host that wrote it
        still has it."""
        writers = [
            host
            for host, report in self._reports.items()
            if unit.marker in report.known and not report.known[unit.marker].is_brought
        ]
        is_there = any(self._reports[host].is_present(unit.marker) for host in writers)
        return "" if is_there else next(iter(writers), "")

    def _whole_copies(self, unit: _Unit) -> Iterator[_Copy]:
        for holder in self._holders:
            report = holder.report
            is_new = unit.marker in report.written
            if unit.marker in report.copies and (is_new or not holder.tree):
                number = None if is_new else report.known[unit.marker].number
                files = dict(self._files_of(unit, holder, number))
                if not unit.directory or self._is_whole(unit, holder, files):
                    yield _Copy(holder, report.copies[unit.marker], files, number)

    def _files_of(self, unit: _Unit, holder: _Holder, number: int | None) -> Iterator[tuple[str, _Holder]]:
        for name in unit.names:
            if name == unit.marker or not unit.directory or not is_of_a_rank(name):
                if name in holder.report.copies and _is_of_same_run(holder, name, holder, unit.marker):
                    yield name, holder
                continue
            writers = [
                other
                for other in self._holders
                if other.tree == holder.tree
                and _has_part(other, name, holder, number)
                and _is_of_same_run(other, name, holder, unit.marker)
            ]
            if holder in writers:  # a host with a marker has its own save
                writers = [other for other in writers if other is holder or unit.marker not in other.report.copies]
            if len({writer.report.copies[name].content for writer in writers}) == 1:
                yield name, holder if holder in writers else writers[0]

    def _is_whole(self, unit: _Unit, holder: _Holder, files: Mapping[str, _Holder]) -> bool:
        report, marker = holder.report, holder.report.copies[unit.marker]
        if any(name in report.half for name in unit.names):
            return False
        if unit.marker not in report.written and any(
            name in report.written and name in report.known and is_weights(name) and copy.mtime > marker.mtime
            for name, copy in ((name, report.copies[name]) for name in unit.names if name in report.copies)
        ):
            return False
        named_parts = {
            name: other.report.named_parts[name] for name, other in files.items() if name in other.report.named_parts
        }
        checkpoint = find_checkpoints(files, self._top, (), named_parts).get(unit.directory)
        return checkpoint is not None and checkpoint.is_whole

    def _bring(self, unit: _Unit, copy: _Copy) -> None:
        number = self._number if copy.number is None else copy.number
        if unit.directory:
            self._markers.append(unit.marker)
        for host, report in self._reports.items():
            for name, holder in copy.files.items():
                entry, there = holder.report.copies[name], report.copies.get(name)
                is_there, before = there is not None and there.content == entry.content, report.known.get(name)
                is_own = is_there and (name in report.written or (before is not None and not before.is_brought))
                self._known[host][name] = KnownContent(entry.content, not is_own, number)
                if is_there:
                    continue
                self._transfers.setdefault((holder.host, host, holder.tree), []).append(entry)
                is_marker = bool(unit.directory) and name == unit.marker
                if name in report.half or (there is not None and (is_marker or name in report.written)):
                    self._aside[host].add(name)
            extra = {*report.copies, *report.half}.intersection(unit.names).difference(copy.files)
            writer = copy.holder.report.runs.get(unit.marker, "")
            self._aside[host].update(
                name
                for name in extra
                if name in report.half
                or is_of_a_framework(name)
                or (writer and report.runs.get(name, writer) != writer)
            )

    def plan(self) -> ExchangePlan:
        return ExchangePlan(
            tuple(
                Transfer(source, target, tuple(copies), tree)
                for (source, target, tree), copies in self._transfers.items()
            ),
            {host: tuple(sorted(names)) for host, names in self._aside.items() if names},
            self._known,
            self._number,
            tuple(self._markers),
            tuple(self._parts),
            self._deleted,
        )


def _is_of_same_run(holder: _Holder, name: str, marked: _Holder, marker: str) -> bool:
    """False if the records say that two runs wrote these files: one checkpoint has files of one run."""
    writer = marked.report.runs.get(marker, "")
    return not writer or holder.report.runs.get(name, writer) == writer


def _has_part(other: _Holder, name: str, holder: _Holder, number: int | None) -> bool:
    """True if a host has a rank's part of the save whose marker is on `holder`."""
    report = other.report
    if name not in report.copies:
        return False
    if number is None:
        return name in report.written and (not report.since or report.since >= holder.report.since)
    return name not in report.written and report.known[name].number == number


def _newest(copies: Sequence[_Copy]) -> _Copy:
    written = [copy for copy in copies if copy.number is None]
    seen = max((copy.number for copy in copies if copy.number is not None), default=-1)
    if all(copy.holder.report.since < seen for copy in written):
        written += [copy for copy in copies if copy.number == seen]
    return max(written, key=lambda copy: (copy.marker.mtime, copy.is_own))
