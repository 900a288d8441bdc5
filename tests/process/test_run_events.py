"""`attach --events` on this machine: piped, stopped, detached, left by its reader, and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from attach_helpers import COUNT_SCRIPT, Attached

from ipexctl.run.registry import RunRegistry
from message_data import missing

pytest_plugins = ["run_fixtures", "attach_fixtures"]


def read_events(out: bytes) -> list[dict[str, Any]]:
    assert out.endswith(b"\n")
    return [json.loads(line) for line in out.splitlines()]


def test_piped_events_have_every_line_and_the_end(attach: Callable[..., Attached]) -> None:
    attached = attach(COUNT_SCRIPT.format(20, 0.01))
    ran = attached.call("attach", "last", "--events")
    events = read_events(ran.stdout)
    for rank in (0, 1):
        texts = [event["text"] for event in events if event["kind"] == "line" and event["rank"] == rank]
        assert texts == [f"number {number}" for number in range(20)]
    assert [event["kind"] for event in events[:2]] == ["plan", "start"]
    assert (events[-1]["kind"], events[-1]["state"], events[-1]["exit_code"], ran.returncode) == ("end", "ok", 0, 0)
    assert b"ended well" in ran.stderr


def test_a_failed_rank_is_a_failure_with_its_exit_code(attach: Callable[..., Attached]) -> None:
    attached = attach("import os, sys\nsys.exit(7 if os.environ['RANK'] == '1' else 0)")
    ran = attached.call("attach", "last", "--events")
    (failure,) = [event for event in read_events(ran.stdout) if event["kind"] == "failure"]
    assert (failure["failure"], failure["rank"], failure["exit_code"], ran.returncode) == ("exit", 1, 7, 7)


@pytest.mark.core
def test_a_run_that_node0_has_not_is_a_failure(attach: Callable[..., Attached]) -> None:
    attached = attach("print('out')")
    attached.run.wait()
    registry = RunRegistry(attached.copies)
    record = attached.run.record
    registry.save(type(record)(**{**{name: getattr(record, name) for name in record.__slots__}, "id": "gone"}))
    ran = attached.call("attach", "gone", "--events")
    *_, failure, end = read_events(ran.stdout)
    assert (failure["kind"], failure["failure"]) == ("failure", "not-followed")
    assert (end["kind"], end["exit_code"], ran.returncode) == ("end", 1, 1)


@pytest.mark.parametrize("other", ["--plain", "--live", "--json"])
def test_events_exclude_other_views(attach: Callable[..., Attached], other: str) -> None:
    attached = attach("print('out')")
    ran = attached.call("attach", "last", "--events", other)
    assert ran.returncode == 2
    assert missing(ran.stderr.decode(), other) == []
    failure, end = read_events(ran.stdout) if other != "--json" else ({"failure": "not-started"}, {"exit_code": 2})
    assert (failure["failure"], end["exit_code"]) == ("not-started", 2)
