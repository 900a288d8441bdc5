"""A run from the start of mpirun to its end: failures end it, the status is correct, no processes remain."""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_helpers import SLEEP_FOREVER, Run, processes_with

from agent_helpers import all_pythons, wait_until
from ipexctl.node.common.processes import is_running
from message_data import missing

pytest_plugins = ["run_fixtures"]


def states(status: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(row["state"], row["exit_code"]) for row in status["ranks"]]


@pytest.mark.parametrize("python", all_pythons())
def test_run_succeeds_under_every_python(make: Callable[..., Run], python: str) -> None:
    run = make("import os, sys\nprint('out', os.environ['RANK'])\nprint('err', file=sys.stderr)", python=python).start()
    status = run.wait()
    assert (status["state"], status["exit_code"], states(status)) == ("ok", 0, [("ok", 0), ("ok", 0)])
    assert [run.output(rank) for rank in (0, 1)] == [b"out 0\n", b"out 1\n"]
    assert run.output(1, "err") == b"err\n"
    assert [row["lines"] for row in status["ranks"]] == [{"out": 1, "err": 1}] * 2
    assert run.said("mpirun.log") == run.said("supervise.log") == ""
    assert run.left() == []


WITH_A_CHILD = "import subprocess, time\nsubprocess.Popen(['sleep', '600'])\nprint('here', flush=True)\ntime.sleep(600)"


@pytest.mark.parametrize(
    ("victim", "exit_code", "first", "row"),
    [
        (lambda status: status["ranks"][1]["pid"], 137, {"kind": "signal", "rank": 1, "signal": 9}, "failed"),
        (lambda status: status["ranks"][1]["wrapper"], 1, {"kind": "lost", "rank": 1, "exit_code": None}, "lost"),
        (lambda status: status["mpirun"]["pid"], 1, {"kind": "mpirun", "rank": None}, "stopped"),
    ],
    ids=["rank", "wrapper", "mpirun"],
)
def test_killed_process_ends_the_run_with_all_child_processes(
    make: Callable[..., Run],
    victim: Callable[[dict[str, Any]], int],
    exit_code: int,
    first: dict[str, Any],
    row: str,
) -> None:
    run = make(WITH_A_CHILD).start()
    run.wait_for_all(b"here")
    os.kill(victim(run.status), signal.SIGKILL)
    status = run.wait()
    assert (status["state"], status["exit_code"]) == ("failed", exit_code)
    assert first.items() <= status["first_failure"].items()
    assert status["ranks"][1]["state"] == row
    if first["kind"] == "mpirun":
        assert missing(status["reason"], "mpirun SIGKILL 0-1 here") == []
        # Nobody waits for the wrappers then: they have told their end, and exit a moment later.
        run.wait_until(lambda: run.left() == [])
    assert run.left() == []


def test_sigterm_stops_the_run_without_restart_and_ranks_can_save(make: Callable[..., Run]) -> None:
    code = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(0)))\n"
    run = make(code + "print('here', flush=True)\ntime.sleep(600)", go={"restarts": 2}).start()
    run.wait_for_all(b"here\n")
    os.kill(run.status["supervisor"]["pid"], signal.SIGTERM)
    status = run.wait()
    assert (status["state"], status["exit_code"], status["first_failure"]) == ("stopped", 143, None)
    assert (status["attempt"], run.output(1)) == (0, b"here\nsaved\n")
    assert not (run.rundir / "job.json").exists()
    assert run.left() == []


@pytest.mark.core
def test_other_ranks_can_save_when_a_wrapper_gets_a_signal(make: Callable[..., Run]) -> None:
    """The wrapper does not exit before the run knows what the signal means: mpirun may kill the other ranks then."""
    code = "import os, signal, sys, time\nsave = lambda *_: (print('saved', flush=True), sys.exit(7))\n"
    code += "if os.environ['RANK'] != '1': signal.signal(signal.SIGTERM, save)\nprint('here', flush=True)\n"
    run = make(code + "time.sleep(600)", 3).start()
    run.wait_for_all(b"here\n")
    wrapper = run.status["ranks"][1]["wrapper"]
    os.kill(wrapper, signal.SIGTERM)
    while b"ending" not in (run.rundir / "events.jsonl").read_bytes():
        assert is_running(wrapper), "it exited before the other ranks were told to"
        time.sleep(0.01)
    status = run.wait()
    first = status["first_failure"]
    assert (status["state"], first["kind"], first["rank"]) == ("failed", "signal", 1)
    assert [run.output(rank) for rank in (0, 2)] == [b"here\nsaved\n"] * 2
    assert run.left() == []


def test_run_directory_errors_are_reported(make: Callable[..., Run]) -> None:
    run = make(SLEEP_FOREVER)
    run.listen()
    (run.rundir / "ranks").write_text("in the way of a directory")
    run.write_job()
    run.send_go()
    assert run.started["event"] == "failed"
    assert f"{run.rundir}/ranks: File exists" in run.started["reason"]
    assert run.said("supervise.log") == ""


def test_killed_supervisor_leaves_no_rank(make: Callable[..., Run]) -> None:
    """mpirun dies with it; ranks that mpirun cannot reach end by themselves, see test_rank."""
    run = make(SLEEP_FOREVER).start()
    run.wait_for_all(b"here")
    os.kill(run.status["supervisor"]["pid"], signal.SIGKILL)
    run.wait_until(lambda: run.left() == [])


def test_supervisor_outlives_its_parent(make: Callable[..., Run]) -> None:
    run = make(SLEEP_FOREVER).start()
    run.wait_for(b"here")
    supervisor = run.status["supervisor"]["pid"]
    assert run.process.returncode == 0
    assert is_running(supervisor)
    assert os.getsid(supervisor) != os.getsid(0)
    assert run.status["supervisor"]["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert os.readlink(f"/proc/{supervisor}/fd/0") == "/dev/null"


def test_no_rank_starts_if_the_caller_ends_before_go(make: Callable[..., Run]) -> None:
    run = make(SLEEP_FOREVER)
    run.listen()
    run.process.communicate(timeout=10)
    assert run.process.returncode == 1
    assert run.left() == []
    assert not (run.rundir / "status.json").exists()


def test_token_and_secrets_are_on_no_command_line_and_removed_after_use(
    make: Callable[..., Run],
) -> None:
    run = make(SLEEP_FOREVER, job={"variables": {"HF_TOKEN": "s3cr3t-value"}})
    run.listen()
    run.write_job()
    assert stat.S_IMODE((run.rundir / "job.json").stat().st_mode) == 0o600
    run.send_go()
    run.wait_for_all(b"here")
    run.wait_until(lambda: not (run.rundir / "job.json").exists())
    words = " ".join(words for _, words in processes_with(str(run.rundir)))
    assert run.token not in words
    assert "s3cr3t-value" not in words
    os.kill(run.status["supervisor"]["pid"], signal.SIGTERM)
    run.wait()
    kept = b"".join(path.read_bytes() for path in run.rundir.rglob("*") if path.is_file())
    assert run.token.encode() not in kept
    assert b"s3cr3t-value" not in kept
    for path in (run.rundir / "ranks", *run.rundir.rglob("*.out"), run.rundir / "status.json"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_supervisor_listens_only_on_the_given_address(make: Callable[..., Run]) -> None:
    run = make(SLEEP_FOREVER).start()
    run.wait_for_all(b"here")
    sockets = subprocess.run(["ss", "-atnH"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[3] for line in sockets.splitlines() if f":{run.port} " in line] == [f"127.0.0.1:{run.port}"]


def test_full_disk_on_node0_loses_no_output_if_space_is_freed(
    make: Callable[..., Run], mounted: Callable[[str], Path]
) -> None:
    place = mounted("size=3m")
    code = "import os, time\nfor i in range(60000): print(i, 'x' * 40)\nprint('end', flush=True)\ntime.sleep(2)"
    run = make(code, 1)
    run.listen()
    run.write_job()
    (run.rundir / "ranks").symlink_to(place)
    run.send_go()
    ballast = place / "ballast"
    ballast.write_bytes(b"\0" * (1 << 20))
    wait_until(lambda: run.status["ranks"][0]["lines"]["out"] == 60001, 20)
    assert (place / "0000.out").stat().st_size < 2 << 20
    subprocess.run(["mount", "-o", "remount,size=20m", str(place)], check=True)
    status = run.wait(60)
    expected = b"".join(b"%d %s\n" % (i, b"x" * 40) for i in range(60000)) + b"end\n"
    assert run.output(0) == expected
    assert (status["state"], status["ranks"][0]["lost"]) == ("ok", 0)


def test_failed_setup_file_on_node0_is_reported_with_a_command(make: Callable[..., Run], tmp_path: Path) -> None:
    setup = tmp_path / "set up.sh"
    setup.write_text("echo no such license >&2\nfalse\n")
    reply = make("print(1)", go={"setup": str(setup)}).start().started
    assert reply["event"] == "failed"
    assert missing(reply["reason"], f"{setup} no such license") == []
    argv = shlex.split(reply["fix"].partition("ipexctl exec -- ")[2])
    assert argv[:2] == ["bash", "-c"]
    assert b"no such license" in subprocess.run(argv, capture_output=True, check=False).stderr
