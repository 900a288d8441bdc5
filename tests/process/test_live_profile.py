"""Requests for a profile of a live run, at the real supervisor and ranks; tests/stack has those with torch."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from run_helpers import HERE, SLEEP_FOREVER, Run

from ipexctl.node.common.records import RunStatus
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import HostError
from ipexctl.run.stack_dump import MissingProfile, request_profile
from ipexctl.run.start.begin import in_rank_files

pytest_plugins = ["run_fixtures"]

STEPS = """
import os, time
from ipexctl.inrank.meter import RingWriter, Totals
ring = RingWriter(os.environ["IPEXCTL_METER"])
steps = 0
print("here", flush=True)
while True:
    steps += 1
    ring.write(Totals(time.monotonic_ns(), steps))
    if (asked := ring.exchange_steps(steps)) and os.environ["RANK"] == "0":
        print("asked for", asked - steps >= 0, flush=True)
        with open(ring.profile_path() + ".part", "w") as file:
            file.write('{"note": "no torch here"}')
        os.replace(file.name, ring.profile_path())
    time.sleep(0.05)
"""


def running(run: Run) -> Run:
    for file in in_rank_files():
        (run.rundir / file.name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (run.rundir / file.name).write_bytes(file.content)
    run.start().wait_for_all(b"here")
    return run


def ask(run: Run) -> tuple[MissingProfile, ...] | RunStatus:
    return request_profile(LocalSession(HERE), run.record)


def test_ranks_without_optimizer_steps_are_said(make: Callable[..., Run]) -> None:
    run = running(make(SLEEP_FOREVER))
    found = ask(run)
    reason = "no two optimizer steps of it were counted yet"
    assert found == (MissingProfile(0, "here", reason), MissingProfile(1, "here", reason))
    assert list((run.rundir / "stacks").glob("ask-*")) == []


def test_a_run_that_is_over_is_not_profiled(make: Callable[..., Run]) -> None:
    run = running(make("print('here')"))
    run.wait()
    over = ask(run)
    assert isinstance(over, RunStatus)
    assert over.state == "ok"


def test_the_process_that_steps_is_asked_and_its_answer_returns(make: Callable[..., Run]) -> None:
    """Rank 1 sees the request and does not answer."""
    run = running(make(STEPS, asked={"meter": True}, limits={"PROFILE_STEPS": 1.0}))
    found = ask(run)
    assert not isinstance(found, RunStatus)
    assert [(each.rank, each.reason) for each in found] == [
        (0, "no torch here"),
        (1, found[1].reason),
    ]
    assert found[1].reason.startswith("its steps took longer than ")
    assert b"asked for True" in run.output()
    assert not (run.rundir / "ranks" / "0000.profile").exists(), "a reason is for who asked"


def test_a_run_of_an_older_version_can_not_be_asked(make: Callable[..., Run]) -> None:
    run = running(make(SLEEP_FOREVER))
    shutil.rmtree(run.rundir / "hooks" / "ipexctl_inrank")
    with pytest.raises(HostError, match="older ipexctl"):
        ask(run)


def test_a_request_that_can_not_be_written_is_an_error(make: Callable[..., Run]) -> None:
    run = running(make(SLEEP_FOREVER))
    (run.rundir / "stacks").write_text("no directory")
    with pytest.raises(HostError, match="the request can't be written"):
        ask(run)
