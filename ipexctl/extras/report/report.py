"""Makes the `ReportPage` of a run from the answer of `why` and from files of the control machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ipexctl.extras.report.comparison import compare
from ipexctl.extras.report.losses import read_losses
from ipexctl.extras.report.measurements import measurements_of
from ipexctl.extras.report.page import Fact, ReportPage, report_page
from ipexctl.extras.slow.view import VerdictOfRun
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.files import read_json
from ipexctl.run.why.why import why
from ipexctl.run.windows import RunWindows
from ipexctl.text import counted, format_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session
    from ipexctl.run.registry import RunRecord
    from ipexctl.run.why.diagnosis import Diagnosis
    from ipexctl.run.why.run_snapshot import RunSnapshot


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
