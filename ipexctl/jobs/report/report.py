"""Makes the `ReportPage` of a run from the answer of `why` and from files of the control machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.report.comparison import compare
from ipexctl.jobs.report.losses import read_losses
from ipexctl.jobs.report.measurements import Measurements
from ipexctl.jobs.report.page import Fact, ReportPage, report_page
from ipexctl.node.common.files import read_json
from ipexctl.text import counted, format_clock

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from ipexctl.jobs.registry import RunRecord
    from ipexctl.jobs.why.diagnosis import Diagnosis
    from ipexctl.jobs.why.run_snapshot import RunSnapshot
    from ipexctl.jobs.why.why import WhyResult


def page_of(answer: WhyResult, runs: Path) -> ReportPage:
    """`runs`: the registry's directory, where the copies of runs are."""
    snapshot = answer.snapshot
    if snapshot is None:
        return page_without_record(answer.record, answer.diagnosis)
    copy = runs / answer.record.id
    return report_page(answer.record, snapshot, answer.diagnosis, _plan(snapshot, copy), read_measurements(copy))


def read_measurements(copy: Path) -> Measurements:
    """What was measured in a run, as far as its copy on the control machine has it."""
    return Measurements(losses=read_losses(copy))


def page_without_record(record: RunRecord, diagnosis: Diagnosis) -> ReportPage:
    """The page of a run of which only the registry of the control machine is left."""
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
    """The page with what differs from the other run."""
    return replace(page, comparison=compare(page, other))


def _plan(snapshot: RunSnapshot, copy: Path) -> Mapping[str, Any]:
    """The whole plan if it is in the copy, else the fields that node0 sends for a diagnosis."""
    return read_json(copy / "plan.json") or snapshot.context.plan
