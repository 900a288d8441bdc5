"""The exit code of a wait, for one run and for several."""

from __future__ import annotations

import pytest

from ipexctl.hosts.host import Host
from ipexctl.node.common.records import read_status
from ipexctl.run.ps import TIMEOUT_CODE, KnownRun
from ipexctl.run.wait import first_failure
from record_helpers import run_record

RECORD = run_record("train-1124-101010-abcd", Host("node1", "10.1.0.1"), "/home/me/.ipexctl", "python3")


def result(state: str, exit_code: int | None = None) -> KnownRun:
    return KnownRun(RECORD, read_status({"id": RECORD.id, "state": state, "exit_code": exit_code}))


@pytest.mark.parametrize(
    ("waited", "code"),
    [
        (result("ok", 0), 0),
        (result("failed", 9), 9),
        (result("failed"), 1),
        (result("lost"), 1),
        (result("stopped", 130), 130),
        (result("running"), TIMEOUT_CODE),
        (KnownRun(RECORD, None), TIMEOUT_CODE),
        (KnownRun(RECORD, None, "node1: no route", is_unreachable=True), 3),
        (KnownRun(RECORD, result("running").status, "node1: no route", is_unreachable=True), 3),
        (KnownRun(RECORD, None, "node1: it has no such run"), 1),
    ],
)
def test_exit_code_says_how_the_run_ended_or_why_that_was_not_seen(waited: KnownRun, code: int) -> None:
    assert waited.exit_code == code


def test_first_failure_in_the_order_of_the_call_decides() -> None:
    assert first_failure([result("ok", 0), result("ok", 0)]) == 0
    assert first_failure([result("ok", 0), result("failed", 7), result("failed", 9)]) == 7
    assert first_failure([result("running"), result("failed", 7)]) == TIMEOUT_CODE


def test_a_result_is_one_line() -> None:
    assert repr(result("failed", 7)) == f"KnownRun({RECORD.id!r}, 'failed', exit_code=7)"
