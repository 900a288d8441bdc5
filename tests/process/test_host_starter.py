"""Ranks of two hosts without an mpirun: the real supervisor, and the real starter of the second host beside it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from run_helpers import DIRECT, SLEEP_FOREVER, Run
from starter_helpers import Attacker, Orders, begin_starter

from agent_helpers import wait_until
from ipexctl.node.common.job import StarterContact
from ipexctl.node.common.json_records import decode
from ipexctl.node.common.processes import is_running
from ipexctl.node.run.follow import StartersWatcher

pytest_plugins = ["run_fixtures"]
RUNS = {
    "size": 4,
    "of_ranks": ["here", "here", "there", "there"],
    "plan": {**DIRECT, "stores": {"here": "here", "there": "here"}},
}
CHANGED = b"[ipexctl: there: somebody on the network changes what it and node0 send each other; it was not obeyed]"
FAIL_ONCE = "import os, sys\nprint('attempt', os.environ['RESTART_COUNT'], flush=True)\n"
FAIL_ONCE += "import time\ntime.sleep(0.5)\nsys.exit(3 * (os.environ['RANK'] + os.environ['RESTART_COUNT'] == '30'))"


def started(run: Run) -> int:
    run.listen()
    pid = begin_starter(run)
    run.send_go()
    return pid


WAIT_ONCE = "import os, time\nprint('attempt', os.environ['RESTART_COUNT'], flush=True)\n"
WAIT_ONCE += "time.sleep(600 * (os.environ['RESTART_COUNT'] == '0'))\n"


def test_ranks_of_both_hosts_run_and_the_starter_goes_with_the_run(make: Callable[..., Run]) -> None:
    run = make("import os\nprint('rank', os.environ['RANK'], os.environ['WORLD_SIZE'])")
    pid = started(run)
    status = run.wait()
    assert (status["state"], status["exit_code"], status["mpirun"]["exit_code"]) == ("ok", 0, 0)
    assert [run.output(rank) for rank in range(4)] == [f"rank {rank} 4\n".encode() for rank in range(4)]
    wait_until(lambda: not is_running(pid), 5)
    assert (run.left(), run.said("mpirun.log")) == ([], "")
    assert [event["host"] for event in run.events("starter")] == ["there"]


@pytest.mark.core
def test_starter_that_connects_after_the_start_starts_its_ranks(make: Callable[..., Run]) -> None:
    run = make("print('ran')").start()
    time.sleep(0.5)
    begin_starter(run)
    assert run.wait()["state"] == "ok"
    assert run.output(3) == b"ran\n"


def test_restart_is_begun_by_the_starter(make: Callable[..., Run]) -> None:
    run = make(FAIL_ONCE, asked={"max_restarts": 1})
    pid = started(run)
    status = run.wait()
    assert (status["state"], status["attempt"], len(status["attempts"])) == ("ok", 1, 1)
    assert run.output(2).count(b"attempt 1") == run.output(0).count(b"attempt 1") == 1
    wait_until(lambda: not is_running(pid), 5)
    assert run.left() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_starter_costs_no_rank(make: Callable[..., Run], number: int) -> None:
    run = make("import sys, time\nprint('here', flush=True)\ntime.sleep(3)\nprint('done')")
    pid = started(run)
    run.wait_for_all(b"here")
    os.kill(pid, number)
    assert run.wait()["state"] == "ok"
    assert [run.output(rank).endswith(b"done\n") for rank in range(4)] == [True] * 4
    assert [event["host"] for event in run.events("starter-lost")] == ["there"]
    wait_until(lambda: not run.left(), 5, run.left)


def test_stop_ends_the_ranks_of_both_hosts(make: Callable[..., Run]) -> None:
    run = make(SLEEP_FOREVER)
    pid = started(run)
    run.wait_for_all(b"here")
    os.kill(run.status["supervisor"]["pid"], signal.SIGTERM)
    assert run.wait()["state"] == "stopped"
    wait_until(lambda: not is_running(pid), 5)
    assert run.left() == []


def test_starter_and_ranks_end_without_their_supervisor(make: Callable[..., Run]) -> None:
    run = make(SLEEP_FOREVER)
    pid = started(run)
    run.wait_for_all(b"here")
    os.kill(run.status["supervisor"]["pid"], signal.SIGKILL)
    wait_until(lambda: not is_running(pid) and not run.left(), 40, run.left)


def test_starter_goes_with_a_supervisor_that_was_never_told_to_start(make: Callable[..., Run]) -> None:
    run = make(SLEEP_FOREVER)
    run.listen()
    pid = begin_starter(run)
    time.sleep(0.5)
    assert is_running(pid)
    run.process.communicate(timeout=10)
    wait_until(lambda: not is_running(pid), 5)


@pytest.mark.parametrize("change", [{"token": "0" * 64}, {"host": "elsewhere"}])
def test_stranger_is_not_taken_for_a_starter(make: Callable[..., Run], change: dict[str, Any]) -> None:
    run = make("print('ran')")
    run.listen()
    stranger = begin_starter(run, **change)
    begin_starter(run)
    run.send_go()
    assert run.wait()["state"] == "ok"
    assert len(run.events("starter")) == 1
    wait_until(lambda: not is_running(stranger), 60)


def _repeat(orders: Orders) -> Orders:
    return [each for order in orders for each in ([order] * (1 + (order["t"] == "start")))]


def _change_ranks(orders: Orders) -> Orders:
    return [{**order, "ranks": [3]} if order["t"] == "start" else order for order in orders]


def _leave_out(orders: Orders) -> Orders:
    return [order for order in orders if order["t"] != "start"]


@pytest.mark.parametrize("change", [_repeat, _change_ranks, _leave_out])
def test_order_that_was_changed_on_its_way_breaks_the_connection(
    make: Callable[..., Run], change: Callable[[Orders], Orders]
) -> None:
    run = make("import time\ntime.sleep(5)\nprint('ran')")
    run.listen()
    with Attacker(run.port, change) as attacker:
        begin_starter(run, port=attacker.port)
        run.send_go()
        assert run.wait()["state"] == "ok"
    assert [run.output(rank) for rank in range(4)] == [b"ran\n"] * 4
    assert [event["host"] for event in run.events("starter-lost")] == ["there"]
    assert attacker.connections >= 2  # the wrappers use this way, too


def test_run_ends_if_its_orders_are_changed_again_and_again(make: Callable[..., Run]) -> None:
    run = make(SLEEP_FOREVER)
    run.listen()
    with Attacker(run.port, _change_ranks, goes_on=True) as attacker:
        starter = begin_starter(run, port=attacker.port)
        run.send_go()
        status = run.wait()
    assert (status["state"], status["exit_code"], status["first_failure"]["kind"]) == ("failed", 3, "changed-orders")
    assert status["first_failure"]["host"] == "there"
    assert attacker.connections <= 8
    assert run.output(0, "err").count(CHANGED) >= 1
    wait_until(lambda: not is_running(starter), 30)
    assert run.left() == []


def _change_field(name: str, value: object) -> Callable[[Orders], Orders]:
    """Change a field of each message that has it; messages of the handshake, too."""
    return lambda answers: [{**answer, name: value} if name in answer else answer for answer in answers]


def _repeat_beats(answers: Orders) -> Orders:
    return [each for answer in answers for each in [answer] * (1 + (answer["t"] == "beat"))]


@pytest.mark.parametrize(
    ("change", "wrapper", "kind"),
    [
        (_change_field("rank", 0), ["/no/such/python", "job.json"], "changed-orders"),
        (_change_field("attempt", 7), ["/no/such/python", "job.json"], "changed-orders"),
        (_change_field("port", "x"), (), "lost"),
        (_repeat_beats, (), "changed-orders"),
    ],
    ids=["rank", "attempt", "port", "repeated"],
)
def test_answers_that_are_changed_again_and_again_end_the_run(
    make: Callable[..., Run], change: Callable[[Orders], Orders], wrapper: Sequence[str], kind: str
) -> None:
    """`wrapper`: its command line, if it can't be started, which the starter reports."""
    run = make(SLEEP_FOREVER)
    run.listen()
    with Attacker(run.port, change, goes_on=True, of_answers=True) as attacker:
        starter = begin_starter(run, argv=wrapper, port=attacker.port)
        run.send_go()
        status = run.wait(60)
        assert (status["state"], status["first_failure"]["kind"]) == ("failed", kind), status["reason"]
        wait_until(lambda: not is_running(starter), 30)
    assert run.left() == []
    if kind == "changed-orders":
        assert (status["exit_code"], status["first_failure"]["host"]) == (3, "there")
        assert run.output(0, "err").count(CHANGED) >= 1
    assert attacker.connections <= 30  # the wrappers use this way, too


def test_call_that_follows_learns_which_starter_to_begin_again(make: Callable[..., Run]) -> None:
    run = make(WAIT_ONCE, asked={"max_restarts": 1})
    pid = started(run)
    run.wait_for_all(b"attempt 0")
    watcher = StartersWatcher(str(run.rundir))
    assert watcher.poll() == {}
    for each in (pid, *(run.status["ranks"][rank]["wrapper"] for rank in (2, 3))):
        os.kill(each, signal.SIGKILL)
    path = run.rundir / "starters.json"
    run.wait_until(path.exists)
    contact = decode(StarterContact, watcher.poll(), "the contact")
    assert (contact.hosts, contact.token, contact.port) == (("there",), run.token, run.port)
    assert (watcher.poll(), path.stat().st_mode & 0o777) == ({}, 0o600)
    begin_starter(run)
    status = run.wait()
    assert (status["state"], status["attempt"], status["attempts"][0]["first_failure"]["kind"]) == ("ok", 1, "lost")
    assert run.output(3).count(b"attempt 1") == 1
    assert (path.exists(), run.left()) == (False, [])
    assert {event["host"] for event in run.events("starter-called")} <= {"there"}


def test_second_starter_of_a_host_is_turned_away(make: Callable[..., Run]) -> None:
    run = make("import time\nprint('here', flush=True)\ntime.sleep(6)")
    started(run)
    run.wait_for_all(b"here")
    second = begin_starter(run)
    wait_until(lambda: not is_running(second), 5)
    assert run.status["state"] == "running"
    assert run.wait()["state"] == "ok"
    assert len(run.events("starter")) == 1
    assert run.output(2) == b"here\n"
