"""Makes the `ReportPage` of a run from the answer of `why` and from files of the control machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ipexctl.jobs.report.comparison import compare
from ipexctl.jobs.report.losses import read_losses
from ipexctl.jobs.report.measurements import Measurements
from ipexctl.jobs.report.page import page_without_record, report_page
from ipexctl.node.common.files import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from ipexctl.jobs.report.page import ReportPage
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


def compared(page: ReportPage, other: ReportPage) -> ReportPage:
    """The page with what differs from the other run."""
    return replace(page, comparison=compare(page, other))


def _plan(snapshot: RunSnapshot, copy: Path) -> Mapping[str, Any]:
    """The whole plan if it is in the copy, else the fields that node0 sends for a diagnosis."""
    return read_json(copy / "plan.json") or snapshot.context.plan
