"""The rule that tells whether a run is over."""

from __future__ import annotations

from typing import Any

import pytest

from ipexctl.node.common.liveness import (
    LEASE_LIMITS,
    REPORT_LIMITS,
    RETENTION_LIMITS,
    WATCHED,
    age_for_follower,
    liveness_of,
    sight_of,
)
from ipexctl.node.common.processes import own_identity
from ipexctl.node.common.records import RunStatus, State

ALIVE = own_identity()
HOUR, DAY = 3600.0, 86400.0
LIMITS = (REPORT_LIMITS, LEASE_LIMITS, RETENTION_LIMITS)


@pytest.mark.parametrize(
    ("state", "supervisor", "expected"),
    [
        ("ok", ALIVE, "over"),
        ("running", ALIVE, "live"),
        ("unknown", ALIVE, "live"),  # of a newer version
        ("running", ALIVE._replace(start=1), "dead"),
        ("running", ALIVE._replace(boot="before the reboot"), "dead"),
    ],
)
def test_on_the_machine_of_the_supervisor_its_process_decides(state: State, supervisor: Any, expected: str) -> None:
    status = RunStatus("r", state, supervisor=supervisor)
    assert {liveness_of(status, age, limits) for limits in LIMITS for age in (0.0, 99 * DAY)} == {expected}


@pytest.mark.parametrize(("age", "dead"), [(60.0, 0), (HOUR, 1), (2 * DAY, 2), (31 * DAY, 3)])
def test_supervisor_on_another_machine_is_dead_after_the_silence_of_the_caller(age: float, dead: int) -> None:
    status = RunStatus("r", "running", supervisor=ALIVE._replace(machine="login7"))
    assert [liveness_of(status, age, limits) for limits in LIMITS] == ["dead"] * dead + ["live"] * (3 - dead)


@pytest.mark.parametrize(
    ("signs", "age", "expected"),
    [
        ({}, 30.0, ["starting", "unknown", "starting"]),
        ({}, 600.0, ["unknown", "unknown", "starting"]),
        ({"has_job": True}, HOUR, ["starting"] * 3),
        ({"has_job": True}, 2 * DAY, ["unknown", "starting", "unknown"]),
        ({"is_elsewhere": True}, HOUR, ["unknown", "starting", "starting"]),
        ({"is_elsewhere": True, "has_job": True}, 2 * DAY, ["unknown", "unknown", "starting"]),
    ],
)
def test_without_a_record_the_files_decide(signs: dict[str, bool], age: float, expected: list[str]) -> None:
    assert [liveness_of(None, age, limits, **signs) for limits in LIMITS] == expected


@pytest.mark.parametrize(
    ("is_here", "machine", "boot", "expected"),
    [
        (True, "node1", "b", "alive"),
        (True, None, None, "alive"),
        (False, "node1", "b", "gone"),
        (False, "node1", None, "gone"),  # of an older version
        (False, "node1", "before the reboot", "unknown"),
        (False, "node2", "b", "unknown"),
        (False, None, "b", "unknown"),
        (None, "node1", "b", "unknown"),
    ],
)
def test_only_node0_shows_that_a_supervisor_is_gone(
    is_here: bool | None, machine: str | None, boot: str | None, expected: str
) -> None:
    assert sight_of(is_here, machine, boot, hostname="node1", host_boot="b") == expected


@pytest.mark.parametrize(
    ("age", "unchanged_for", "expected"),
    [
        (REPORT_LIMITS.remote - 1, WATCHED, "live"),  # the status is new, by the clock of its machine
        (REPORT_LIMITS.remote, WATCHED - 1, "live"),
        (REPORT_LIMITS.remote, WATCHED, "dead"),
        (0.0, REPORT_LIMITS.remote, "dead"),
    ],
)
def test_follower_needs_an_old_status_and_its_own_clock(age: float, unchanged_for: float, expected: str) -> None:
    status = RunStatus("r", "running", supervisor=ALIVE._replace(machine="login7"))
    assert liveness_of(status, age_for_follower(age, unchanged_for), REPORT_LIMITS) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, False),
        ({"boot": "before the reboot"}, True),
        ({"start": -1}, True),  # before the first process of its container
        ({"machine": "another", "boot": "of another machine"}, False),
        ({"pid": 0, "start": None}, False),
    ],
)
def test_a_process_recorded_before_a_restart_of_its_machine_is_known(changes: dict[str, Any], expected: bool) -> None:
    assert own_identity()._replace(**changes).was_before_restart == expected
