"""`ipexctl wait` on this machine: exit codes, its time limit, and summaries."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from attach_helpers import COUNT_SCRIPT, Attached

pytest_plugins = ["run_fixtures", "attach_fixtures"]

FAILS = "import sys, time\nprint('here', flush=True)\ntime.sleep(0.5)\nsys.exit(7)"


def test_exit_code_of_the_run_and_its_summary(attach: Callable[..., Attached]) -> None:
    attached = attach(FAILS, 1)
    summary = attached.run.home / "summary.json"
    done = attached.call("wait", "last", "--summary", str(summary))
    assert done.returncode == 7, done.stderr
    assert done.stdout == b""
    assert b"failed" in done.stderr
    document = json.loads(summary.read_text())
    assert (document["id"], document["state"], document["exit_code"]) == (attached.run.id, "failed", 7)
    again = attached.call("wait", attached.run.id, "--json")
    (run,) = json.loads(again.stdout)["runs"]
    assert (again.returncode, run["state"], run["exit_code"]) == (7, "failed", 7)


@pytest.mark.core
def test_run_that_ends_well_is_waited_for_to_its_end(attach: Callable[..., Attached]) -> None:
    attached = attach(COUNT_SCRIPT.format(20, 0.05), 1)
    done = attached.call("wait", "last")
    assert done.returncode == 0, done.stderr
    assert attached.run.status["state"] == "ok"
    assert attached.call("wait", "last", "-q").stderr == b""


def test_time_limit_has_its_own_exit_code_and_leaves_the_run_alone(attach: Callable[..., Attached]) -> None:
    attached = attach(COUNT_SCRIPT.format(100_000, 0.05), 1)
    started = time.monotonic()
    done = attached.call("wait", "last", "--timeout", "1.5")
    assert done.returncode == 124, done.stderr
    assert 1.4 < time.monotonic() - started < 15
    assert f"ipexctl wait {attached.run.id}".encode() in done.stderr
    assert attached.run.status["state"] == "running"
    assert json.loads(attached.call("wait", "last", "--timeout", "3", "--json").stdout)["runs"][0]["state"] == "running"
