"""Ranks of a second host that an mpirun starts through the host's starter: real supervisor and starter, and a stand-in
for hydra that calls the real program in place of ssh.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_helpers import SLEEP_FOREVER, Run
from starter_helpers import Attacker, Orders, begin_starter

from agent_helpers import wait_until
from ipexctl.node.common.processes import is_running

pytest_plugins = ["run_fixtures"]
STAND_IN = Path(__file__).parents[1] / "stand_ins" / "mpirun_by_shell.py"
RUNS = {"size": 4, "of_ranks": ["here", "here", "there", "there"], "limits": {"SUPERVISOR_CONNECT": 1.0}}


@pytest.fixture
def through(make: Callable[..., Run]) -> Callable[..., Run]:
    """Make a run whose ranks on `there` are started through a starter, which has not begun yet."""

    def new(command: str, *, host: str = "there", **more: Any) -> Run:
        run = make(command, **more)
        run.launch = [sys.executable, str(STAND_IN), str(run.rundir / "ssh.sh"), host, "2", "4"]
        run.plan = {"has_starters": True, "stores": {"here": "here", "there": "here"}}
        run.listen()
        shell = run.rundir / "ssh.sh"
        shell.write_text(
            f'#!/bin/sh\nexec {" ".join(run.program("run.host_starter.remote_shell"))} {run.rundir} "$@"\n'
        )
        shell.chmod(0o700)
        return run

    return new


def begin(run: Run, **changes: Any) -> int:
    """Begin the starter. A rank that it starts on its own, and not for mpirun, leaves a file."""
    own = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w')", str(run.rundir / "own-rank")]
    return begin_starter(run, argv=own, **changes)


def check_ended(run: Run, *starters: int) -> None:
    wait_until(lambda: not any(map(is_running, starters)), 5)
    wait_until(lambda: not run.left(), 5, run.left)
    assert not (run.rundir / "own-rank").exists()
    assert not (run.rundir / "shell.json").exists()


def call_shell(run: Run, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [run.rundir / "ssh.sh", *words],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.core
@pytest.mark.parametrize("is_late", [False, True])
def test_mpirun_starts_ranks_on_a_host_through_its_starter(through: Callable[..., Run], *, is_late: bool) -> None:
    run = through("import os\nprint('rank', os.environ['RANK'], os.environ['RESTART_COUNT'])")
    pids = [] if is_late else [begin(run)]
    run.send_go()
    if is_late:
        time.sleep(1.0)
        pids = [begin(run)]
    assert run.wait()["state"] == "ok"
    assert [run.output(rank) for rank in range(4)] == [f"rank {rank} 0\n".encode() for rank in range(4)]
    assert run.said("mpirun.log") == ""
    check_ended(run, *pids)


def test_code_of_a_rank_there_is_the_runs_and_a_restart_goes_the_same_way(through: Callable[..., Run]) -> None:
    code = "import os, sys, time\ntime.sleep(0.5)\n"
    code += "sys.exit(7 * (os.environ['RANK'] + os.environ['RESTART_COUNT'] == '30'))"
    run = through(code, asked={"max_restarts": 1})
    pid = begin(run)
    run.send_go()
    status = run.wait()
    assert (status["state"], status["attempt"], status["attempts"][0]["first_failure"]["rank"]) == ("ok", 1, 3)
    check_ended(run, pid)
    run = through(code)
    pid = begin(run)
    run.send_go()
    assert run.wait()["exit_code"] == 7
    check_ended(run, pid)


def test_stop_ends_the_ranks_of_both_hosts(through: Callable[..., Run]) -> None:
    run = through(SLEEP_FOREVER)
    pid = begin(run)
    run.send_go()
    run.wait_for_all(b"here")
    os.kill(run.status["supervisor"]["pid"], signal.SIGTERM)
    assert run.wait()["state"] == "stopped"
    check_ended(run, pid)


@pytest.mark.parametrize("again", [False, True])
def test_killed_starter_costs_no_rank_and_a_later_one_starts_nothing(
    through: Callable[..., Run], *, again: bool
) -> None:
    run = through("import time\nprint('here', flush=True)\ntime.sleep(4)\nprint('done')")
    pid = begin(run)
    run.send_go()
    run.wait_for_all(b"here")
    os.kill(pid, signal.SIGKILL)
    if again:
        run.wait_until(lambda: run.events("starter-lost"))
        pid = begin(run)
    began = time.monotonic()
    assert run.wait()["state"] == "ok"
    assert time.monotonic() - began < 8, "mpirun does not wait for the end of a line that nobody will report"
    assert [run.output(rank) for rank in range(4)] == [b"here\ndone\n"] * 4
    check_ended(run, pid)


def test_wrapper_that_is_killed_there_is_named(through: Callable[..., Run]) -> None:
    """The stand-in does not notice, so that the supervisor has to ask the host."""
    run = through(SLEEP_FOREVER)
    pid = begin(run)
    run.send_go()
    run.wait_for_all(b"here")
    began = time.monotonic()
    os.kill(run.status["ranks"][3]["wrapper"], signal.SIGKILL)
    status = run.wait()
    assert time.monotonic() - began < 15
    assert (status["first_failure"]["rank"], status["first_failure"]["detail"]["kind"]) == (3, "wrapper-killed")
    check_ended(run, pid)


def test_line_there_ends_with_the_mpirun_that_wanted_it(through: Callable[..., Run]) -> None:
    run = through(SLEEP_FOREVER)
    pid = begin(run)
    run.send_go()
    run.wait_for_all(b"here")
    call = subprocess.Popen([run.rundir / "ssh.sh", "there", "echo begun; exec sleep 600"], stdout=subprocess.PIPE)
    assert call.stdout is not None
    assert call.stdout.readline() == b"begun\n"
    call.kill()
    call.wait()
    wait_until(lambda: not [line for line in run.left() if "sleep 600" in line], 5, run.left)
    os.kill(run.status["supervisor"]["pid"], signal.SIGTERM)
    run.wait()
    check_ended(run, pid)


def test_calls_of_the_shell(through: Callable[..., Run]) -> None:
    run = through(SLEEP_FOREVER)
    pid = begin(run)
    run.send_go()
    run.wait_for_all(b"here")
    big = call_shell(run, "-x", "-q", "there", "head -c 1000000 /dev/zero | tr '\\0' a; echo no >&2; exit 9")
    assert (len(big.stdout), big.stderr, big.returncode) == (1000000, "no\n", 9)
    assert call_shell(run, "there", "printf", "'%s' '\xe9 $HOME'").stdout == "\xe9 $HOME"
    assert call_shell(run, "there", "cat; kill -9 $$").returncode == 137
    assert call_shell(run, "here", "exit 5").returncode == 5, "node0 itself has no starter"
    stranger = call_shell(run, "elsewhere", "touch /tmp/x")
    assert (stranger.returncode, "elsewhere" in stranger.stderr) == (255, True)
    contact = run.rundir / "shell.json"
    assert contact.stat().st_mode & 0o777 == 0o600
    document = json.loads(contact.read_text())
    assert document["token"] != run.token
    contact.write_text(json.dumps({**document, "token": "0" * 64}))
    refused = call_shell(run, "there", f"touch {run.rundir}/own-rank")
    assert (refused.returncode, refused.stderr.startswith("ipexctl: there: ")) == (255, True)
    os.kill(run.status["supervisor"]["pid"], signal.SIGTERM)
    run.wait()
    check_ended(run, pid)
    over = call_shell(run, "there", "true")
    assert (over.returncode, "Traceback" in over.stderr) == (255, False)


def test_setup_file_is_sourced_before_a_line(through: Callable[..., Run], tmp_path: Path) -> None:
    setup = tmp_path / "set up.sh"
    setup.write_text("echo noise\nmodule() { export LOADED=$1; }\nmodule mpi\n")
    run = through(SLEEP_FOREVER)
    run.plan["setup"] = str(setup)
    pid = begin(run)
    run.send_go()
    run.wait_for_all(b"here")
    assert call_shell(run, "there", "echo $LOADED").stdout == "mpi\n"
    os.kill(run.status["supervisor"]["pid"], signal.SIGTERM)
    run.wait()
    check_ended(run, pid)


def _lose_line(orders: Orders) -> Orders:
    return [order for order in orders if order["t"] != "shell"]


def test_line_that_is_lost_with_its_connection_is_ordered_again(through: Callable[..., Run]) -> None:
    run = through("import os\nprint('rank', os.environ['RANK'])")
    with Attacker(run.port, _lose_line) as attacker:
        pid = begin(run, port=attacker.port)
        run.send_go()
        assert run.wait()["state"] == "ok"
    assert [run.output(rank) for rank in range(4)] == [f"rank {rank}\n".encode() for rank in range(4)]
    assert len(run.events("starter")) == 2
    check_ended(run, pid)
