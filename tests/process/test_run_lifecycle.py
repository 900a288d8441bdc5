"""Restarts, stalls, clock jumps and full disks during a run."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from run_helpers import Run

from agent_helpers import all_pythons
from message_data import missing
from tiny_wheels import STAND_INS

pytest_plugins = ["run_fixtures"]

JUMPS = """
_true, _jumps = time.time, [0]


def _jumping() -> float:
    _jumps[0] += 1
    return _true() + 86400.0 * (_jumps[0] % 3 - 1)


time.time = _jumping
"""


ONE_BY_ONE = """import os, subprocess, sys
for rank in "01":
    told = {"PMI_RANK": rank, "PMI_SIZE": "2", "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": "2"}
    subprocess.run(sys.argv[1:], env={**os.environ, **told}, check=True)
"""


def test_rank_that_starts_after_another_ended_finds_its_job_file(make: Callable[..., Run]) -> None:
    run = make("print('here')", launch=[sys.executable, "-c", ONE_BY_ONE]).start()
    status = run.wait()
    assert status["state"] == "ok", run.said("mpirun.log")
    assert not (run.rundir / "job.json").exists()


def test_each_attempt_has_its_own_port_and_a_separator_line(make: Callable[..., Run]) -> None:
    code = "import os, sys, time\nprint('begun', os.environ['RESTART_COUNT'], os.environ['MASTER_PORT'], flush=True)\n"
    code += "time.sleep(0.5)\nsys.stdout.write('no end')\nsys.stdout.flush()\n"
    run = make(code + "if os.environ['RANK'] == '1': sys.exit(4)\ntime.sleep(600)", go={"restarts": 1}).start()
    status = run.wait()
    assert (status["state"], status["exit_code"], status["attempt"], status["restarts"]) == ("failed", 4, 1, 1)
    lines = run.output(1).decode().splitlines()
    assert lines[1] == "no end"
    assert lines[2].startswith("[ipexctl: restart 1 of 1 after: ")
    assert missing(lines[2], "1 here 4") == []
    assert [line.split()[:2] for line in lines if line.startswith("begun")] == [["begun", "0"], ["begun", "1"]]
    assert len({line.split()[2] for line in lines if line.startswith("begun")}) == 2
    assert run.output(1, "err") == b""
    assert [(each["attempt"], each["first_failure"]["rank"]) for each in status["attempts"]] == [(0, 1)]
    assert status["first_failure"]["kind"] == "exit"
    assert not (run.rundir / "job.json").exists()
    assert run.left() == []


@pytest.mark.rest
def test_restart_waits_for_slow_ranks(make: Callable[..., Run]) -> None:
    code = "import os, signal, time\nattempt, rank = os.environ['RESTART_COUNT'], os.environ['RANK']\n"
    code += "if (attempt, rank) == ('0', '1'): signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "print('here', attempt, flush=True)\nif attempt == '0': time.sleep(600)"
    run = make(code, 2, go={"restarts": 1}).start()
    run.wait_for_all(b"here 0")
    os.kill(run.status["ranks"][0]["wrapper"], signal.SIGTERM)
    status = run.wait(40)
    assert (status["state"], status["attempt"], [rank["exit_code"] for rank in status["ranks"]]) == ("ok", 1, [0, 0])


@pytest.mark.rest
def test_silent_run_is_reported_with_last_lines_and_not_ended(make: Callable[..., Run]) -> None:
    code = "import os, time\nprint('step', os.environ['RANK'], flush=True)\nwhile not os.path.exists('speak'):\n"
    code += " time.sleep(0.1)\nprint('again', flush=True)\ntime.sleep(2)"
    run = make(code, go={"hang_after": 2.5}).start()
    run.wait_until(lambda: run.status["silent"])
    silent = run.status["silent"]
    assert silent["after"] == 2.5
    assert 2.0 < time.time() - silent["since"] < 6.0
    assert [(row["rank"], row["host"], row["last"]) for row in silent["ranks"]] == [
        (0, "here", "step 0"),
        (1, "here", "step 1"),
    ]
    assert {row["process"] for row in silent["ranks"]} <= {"S", "R"}
    run.wait_until(lambda: (run.status["silent"] or {}).get("dump"))  # kept for `why`, also if it is not shown
    kept = run.rundir / "stacks" / f"dump-{run.status['silent']['dump']}.json"
    assert [row["rank"] for row in json.loads(kept.read_text())["ranks"]] == [0, 1]
    assert run.status["silent"]["on_hang"] == "report"
    (run.home / "speak").touch()
    status = run.wait()
    assert (status["state"], status["silent"]) == ("ok", None)
    assert [len(run.events(name)) for name in ("silent", "output-resumed")] == [1, 1]


HANG_SCRIPT = "import time\ndef wait_for_others():\n time.sleep(600)\nprint('here', flush=True)\nwait_for_others()"


def test_silent_run_is_dumped_once_and_continues(make: Callable[..., Run]) -> None:
    run = make(HANG_SCRIPT, go={"hang_after": 1, "on_hang": "dump"}).start()
    run.wait_for_all(b"here")
    run.wait_until(lambda: (run.status["silent"] or {}).get("dump"), 40)
    time.sleep(1.5)
    assert run.status["state"] == "running"
    dumps = list((run.rundir / "stacks").glob("dump-*.json"))
    assert len(dumps) <= len(run.events("silent"))  # a slow start may be silent for a second, too
    newest = max(dumps)
    assert newest.name == f"dump-{run.status['silent']['dump']}.json"
    assert newest.read_text().count("wait_for_others") >= 2
    assert newest.stat().st_mode & 0o777 == 0o600


@pytest.mark.rest
def test_run_that_is_silent_again_and_again_keeps_one_dump(make: Callable[..., Run]) -> None:
    code = "import time\nfor step in range(2):\n print('step', flush=True)\n time.sleep(5)"
    run = make(code, go={"hang_after": 2.5, "on_hang": "report"}).start()
    assert run.wait(60)["state"] == "ok"
    assert len(run.events("dumped")) >= 2
    assert len(list((run.rundir / "stacks").glob("dump-*.json"))) == 1


def test_rank_lost_before_another_failed_is_the_first_failure(make: Callable[..., Run]) -> None:
    code = "import os, signal, time\nif os.environ['RANK'] == '1':\n os.kill(os.getppid(), signal.SIGKILL)\n"
    run = make(code + " time.sleep(60)\ntime.sleep(1)\nraise SystemExit(1)").start()
    status = run.wait(40)
    first = status["first_failure"]
    assert (status["state"], status["exit_code"], first["kind"], first["rank"], first["host"]) == (
        "failed",
        1,
        "lost",
        1,
        "here",
    )
    assert [(row["state"], row["exit_code"]) for row in status["ranks"]] == [("failed", 1), ("lost", None)]
    assert "rank 1" in status["reason"]


def test_a_silent_run_is_dumped_and_stopped(make: Callable[..., Run]) -> None:
    run = make(HANG_SCRIPT, go={"hang_after": 1, "on_hang": "stop"}).start()
    status = run.wait()
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    first = status["first_failure"]
    assert (first["kind"], first["rank"], first["ranks"]) == ("hang", None, [0, 1])
    assert (run.rundir / "stacks" / f"dump-{status['silent']['dump']}.json").exists()
    assert run.left() == []


@pytest.mark.rest
def test_hanging_run_is_restarted_if_allowed(make: Callable[..., Run]) -> None:
    code = "import os, time\nprint('here', flush=True)\nif os.environ['RESTART_COUNT'] == '0': time.sleep(600)"
    run = make(code, go={"hang_after": 6, "on_hang": "stop", "restarts": 1}).start()
    status = run.wait()
    assert (status["state"], status["attempt"]) == ("ok", 1)
    assert status["attempts"][0]["first_failure"]["kind"] == "hang"


def test_hang_after_0_disables_stall_detection(make: Callable[..., Run]) -> None:
    run = make("import time\ntime.sleep(2)", go={"hang_after": 0}).start()
    assert run.wait()["state"] == "ok"
    assert run.events("silent") == []


def test_clock_jumps_do_not_affect_the_run(make: Callable[..., Run]) -> None:
    """Of the supervisor; the rank wrapper has no such clock."""
    patches = {"run.supervisor": ("MAX_MISMATCHES = 64\n", "MAX_MISMATCHES = 64\n" + JUMPS)}
    code = "import time\nfor n in range(20):\n print(n, flush=True)\n time.sleep(0.1)"
    go = {"time_limit": 60, "hang_after": 30}
    run = make(code, go=go, patches=patches).start()
    status = run.wait()
    assert (status["state"], status["reason"]) == ("ok", "")
    assert run.output(1) == b"".join(b"%d\n" % n for n in range(20))
    assert run.events("silent") == run.events("lost") == []


def test_final_status_is_written_without_free_disk_space(make: Callable[..., Run]) -> None:
    """From then on no file can be created in the directory, as on a full disk."""
    refused = ("number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)\n", "")
    only_what_is_there = refused[0].replace("os.O_CREAT |", "(os.O_CREAT if self.status.state == 'starting' else 0) |")
    run = make("import time\ntime.sleep(2)", patches={"run.recorder": (refused[0], only_what_is_there)}).start()
    status = run.wait()
    assert (status["state"], status["exit_code"]) == ("ok", 0)
    assert json.loads((run.rundir / "status.json").read_text())["ended"] is not None


def test_setup_file_that_hangs_is_reported_and_ended(make: Callable[..., Run], tmp_path: Path) -> None:
    setup = tmp_path / "setvars.sh"
    setup.write_text(f"WHOSE={tmp_path}/runs/run0 sleep 600\n")
    run = make(
        "print(1)", job={"setup": str(setup)}, patches={"common.limits": ("SETUP_FILE = 90.0", "SETUP_FILE = 1.0")}
    ).start()
    assert run.wait()["exit_code"] == 127
    assert missing(run.output(0, "err").decode(), "setvars.sh 1") == []
    assert run.left() == []


@pytest.mark.parametrize(
    ("command", "job", "kind", "file"),
    [
        (["no-such-command"], {}, "no-command", "no-such-command"),
        ("print(1)", {"cwd": "/no/such/directory"}, "no-directory", "/no/such/directory"),
        ("print(1)", {"setup": "/no/such/setup.sh"}, "setup-failed", "/no/such/setup.sh"),
    ],
)
def test_record_has_why_a_command_could_not_be_started(
    make: Callable[..., Run], command: list[str] | str, job: dict[str, str], kind: str, file: str
) -> None:
    """As fields, for `why`: the sentences are for people."""
    status = make(command, job=job).start().wait()
    problem = status["first_failure"]["detail"]
    assert (problem["kind"], problem["fields"]["file"]) == (kind, file)
    assert all(problem["fields"].values())
    assert status["ranks"][status["first_failure"]["rank"]]["problem"] == problem


@pytest.mark.parametrize(("code", "is_kept"), [(0, True), (3, False)])
def test_connectivity_record_is_kept_only_after_success(make: Callable[..., Run], code: int, is_kept: bool) -> None:
    run = make(f"import sys; sys.exit({code})", go={"connectivity": {"key": "k", "checked": 1.5}})
    record = run.home / "runs" / ".connectivity.json"
    record.parent.mkdir()
    record.write_text('{"key": "of an earlier run", "checked": 1.0}')
    run.start().wait()
    assert [json.loads(path.read_text()) for path in run.home.glob("runs/.connectivity.json")] == (
        [{"key": "k", "checked": 1.5}] if is_kept else []
    )


def test_first_run_saves_the_agent_with_bytecode(make: Callable[..., Run], tmp_path: Path) -> None:
    saved = tmp_path / "agent" / "of-this-version.zip"
    saved.parent.mkdir()
    run = make("print('here')", job={"bytecode": str(saved)}).start()
    assert run.wait()["state"] == "ok"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    for python in all_pythons():
        argv = [python, "-I", str(saved), "run.rank", str(tmp_path / "missing")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout) == (111, ""), done.stderr
        assert missing(done.stderr, str(tmp_path / "missing")) == []
    code = "import sys; sys.path.insert(0, sys.argv[1]); import ipexctl.node.run.rank as rank; print(rank.__file__)"
    argv = [sys.executable, "-I", "-c", code, str(saved)]
    imported = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert imported.stdout == f"{saved}/ipexctl/node/run/rank.pyc\n"


OF_ITS_OWN_SESSION = """
import os, sys
pid = os.fork()
if pid:
    sys.exit(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))
os.setsid()
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.rest
def test_wrapper_of_the_previous_attempt_does_not_affect_the_next(make: Callable[..., Run], tmp_path: Path) -> None:
    code = f"""
import os, pathlib, sys, time
attempt = os.environ["RESTART_COUNT"]
print("here", attempt, flush=True)
while attempt == "0":
    time.sleep(0.1)
    if os.environ["RANK"] == "0" and pathlib.Path({str(tmp_path / "fail")!r}).exists():
        sys.exit(4)
time.sleep(3)
"""
    launch = [sys.executable, str(STAND_INS / "mpirun.py"), "2", sys.executable, "-c", OF_ITS_OWN_SESSION]
    run = make(code, 2, launch=launch, go={"restarts": 1}).start()
    run.wait_for_all(b"here 0")
    suspended = run.status["ranks"][1]["wrapper"]
    os.kill(suspended, signal.SIGSTOP)
    (tmp_path / "fail").touch()
    run.wait_until(lambda: all(b"here 1" in run.output(rank) for rank in (0, 1)), 40)
    os.kill(suspended, signal.SIGCONT)
    status = run.wait(40)
    assert (status["state"], status["attempt"], [rank["exit_code"] for rank in status["ranks"]]) == ("ok", 1, [0, 0])
