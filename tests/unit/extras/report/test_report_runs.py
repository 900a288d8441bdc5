"""Pages of runs as they end: each known cause, hangs with their stacks, damaged records."""

from __future__ import annotations

import html
from typing import Any

import pytest
from known_texts import TEXTS, Text, account, document, recorded_dump

from ipexctl.extras.report.html import page_html
from ipexctl.extras.report.page import ReportPage, report_page
from ipexctl.hosts.host import Host
from ipexctl.run.registry import RunRecord
from ipexctl.run.why.diagnosis import diagnose
from ipexctl.run.why.run_snapshot import read_snapshot
from ipexctl.text import printable

RECORD = RunRecord("train-1", Host("node1", "node1"), "/root/.ipexctl", "python3", "train.py")


def page_of(text: Text) -> ReportPage:
    dump = recorded_dump(text.stacks) if text.stacks else None
    snapshot = read_snapshot(*document(text), "node1", dump)
    return report_page(RECORD, snapshot, diagnose(snapshot), {})


def test_every_known_cause_is_on_its_page() -> None:
    for text in TEXTS:
        page = page_of(text)
        shown = html.unescape(page_html(page))
        assert printable(page.headline) in shown
        assert printable(page.cause) in shown


def test_the_stacks_of_a_hang_are_folded_on_the_page() -> None:
    hung = [page for text in TEXTS if text.stacks and (page := page_of(text)).stacks]
    assert hung
    for page in hung:
        assert page_html(page).count("<details><summary>") >= len(page.stacks)
        assert all(stack.lines for stack in page.stacks)


@pytest.mark.parametrize(
    "status",
    [
        {"started": None, "ended": None},
        {"started": 1e308, "ended": -1e308},
        {"started": -1e308, "ended": 1e308},
        {"started": 1000.0, "ended": 1000.0},
        {"started": "x", "ended": [], "exit_code": {}, "attempts": "x", "silent": 3},
        {"attempts": [{"attempt": 0, "ended": 9e99}, {"ended": None}, 3, {"ended": -5.0}], "attempt": 3},
        {"silent": {"since": 1005.0, "after": 3.0, "ranks": []}},
    ],
)
def test_a_damaged_record_gives_a_page(status: dict[str, Any]) -> None:
    events = [{"event": "start", "at": "x"}, {"event": "start", "at": 1e300}, {}, {"event": None}]
    sent, output = account([({"state": "ok"}, "")], status=status, state="running", events=events)
    snapshot = read_snapshot(sent, output, "node1")
    drawn = page_html(report_page(RECORD, snapshot, diagnose(snapshot), {})).partition("<body>")[2]
    assert "<h1>" in drawn
    assert '="nan' not in drawn
    assert 'width="-' not in drawn
    assert "inf" not in drawn.partition("<script>")[0]
