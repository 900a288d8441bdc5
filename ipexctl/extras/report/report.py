"""Makes the `ReportPage` of a run from the answer of `why` and from files of the control machine.

Losses are those that rank 0 printed, which has them in nearly all scripts, with the time node0 received each line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from ipexctl.extras.report.comparison import compare
from ipexctl.extras.report.measurements import measurements_of
from ipexctl.extras.report.page import Fact, ReportPage, report_page
from ipexctl.extras.slow.view import VerdictOfRun
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.files import read_json
from ipexctl.node.common.frames import SUFFIXES, StreamName
from ipexctl.node.run.output_times import TimesReader
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.session import Session
from ipexctl.run.registry import RunRecord
from ipexctl.run.why.diagnosis import Diagnosis
from ipexctl.run.why.run_snapshot import RunSnapshot
from ipexctl.run.why.why import why
from ipexctl.run.windows import RunWindows
from ipexctl.text import counted, format_clock, without_colors
from ipexctl.ui.run.figures import training_loss

MAX_BYTES: Final = 32 << 20
MAX_LOSSES: Final = 100_000
_MAX_LINE: Final = 2000


def find_losses(lines: Iterable[tuple[float, str]]) -> tuple[tuple[float, float], ...]:
    found: list[tuple[float, float]] = []
    for at, line in lines:
        value = training_loss(without_colors(line[:_MAX_LINE]))
        if value is not None and math.isfinite(value) and len(found) < MAX_LOSSES:
            found.append((at, value))
    return tuple(found)


def read_losses(copy: Path) -> tuple[tuple[float, float], ...]:
    times = TimesReader(str(copy / "output.times"), 2)
    if not times.exists:
        return ()
    ends: dict[StreamName, list[tuple[float, int]]] = {}
    for at, (rank, stream), end in times.entries():
        if rank == 0:
            ends.setdefault(stream, []).append((at, end))
    for stream, steps in ends.items():
        try:
            with (copy / "ranks" / f"0000.{SUFFIXES[stream]}").open("rb") as file:
                data = file.read(MAX_BYTES)
        except OSError:
            continue
        if found := find_losses(timed_lines(data, steps)):
            return found
    return ()


def timed_lines(data: bytes, steps: Iterable[tuple[float, int]]) -> Iterator[tuple[float, str]]:
    """Lines with the time their end was received. `steps`: time, and size of the output then."""
    begin = 0
    for at, end in steps:
        last = max(data.rfind(b"\n", begin, end), data.rfind(b"\r", begin, end)) + 1
        if last <= begin:
            continue
        for line in re.split(rb"[\r\n]+", data[begin:last]):
            if line:
                yield at, line.decode(errors="replace")
        begin = last


class RunReport(NamedTuple):
    page: ReportPage
    exit_code: int


def report_of(
    record: RunRecord, open_session: Callable[[], Session], runs: Path, cancel: Cancel, *, timeout: float
) -> RunReport:
    """Query node0; if unreachable, read the copy in `runs`, the registry's directory."""
    answer = why(record, open_session, runs, cancel, timeout=timeout)
    copy, snapshot = runs / record.id, answer.snapshot
    if snapshot is None:
        return RunReport(page_without_record(answer.record, answer.diagnosis), answer.exit_code)
    windows = answer.windows or RunWindows()
    names = {row.rank: row.host for row in snapshot.status.ranks}
    hosts = {names[rank]: found for rank, found in windows.hosts.items() if rank in names}
    measured = measurements_of(windows.ranks, hosts, read_losses(copy))
    slow = answer.slow.verdict if isinstance(answer.slow, VerdictOfRun) else None
    page = report_page(answer.record, snapshot, answer.diagnosis, _plan(snapshot, copy), measured)
    return RunReport(replace(page, slow=slow, record=answer.record), answer.exit_code)


def page_without_record(record: RunRecord, diagnosis: Diagnosis) -> ReportPage:
    facts = [Fact("Script", record.script)]
    if record.hosts:
        ranks = counted(record.world_size, "rank")
        facts.append(Fact("Hosts", f"{ranks} on {counted(len(record.hosts), 'host')}: {fold(record.hosts)}"))
    if record.started:
        facts.append(Fact("Started", format_clock(record.started, "%Y-%m-%d %H:%M:%S")))
    return ReportPage(
        run=record.id,
        state=diagnosis.state,
        headline=diagnosis.headline,
        commands=diagnosis.next,
        notes=diagnosis.notes,
        facts=tuple(facts),
        missing=("everything else: the record of the run is on node0 alone",),
    )


def compared(page: ReportPage, other: ReportPage) -> ReportPage:
    return replace(page, comparison=compare(page, other))


def _plan(snapshot: RunSnapshot, copy: Path) -> Mapping[str, Any]:
    """The plan from the copy, else the fields that node0 sends for a diagnosis."""
    return read_json(copy / "plan.json") or snapshot.context.plan
