"""Restarts and stalls during a run, and what a rank needs to begin."""

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

import ipexctl
from agent_helpers import all_pythons
from message_data import missing
from tiny_wheels import STAND_INS

pytest_plugins = ["run_fixtures"]

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


@pytest.mark.core
def test_each_attempt_has_its_own_port_and_a_separator_line(make: Callable[..., Run]) -> None:
    code = "import os, sys, time\nprint('begun', os.environ['RESTART_COUNT'], os.environ['MASTER_PORT'], flush=True)\n"
    code += "time.sleep(0.5)\nsys.stdout.write('no end')\nsys.stdout.flush()\n"
    run = make(code + "if os.environ['RANK'] == '1': sys.exit(4)\ntime.sleep(600)", asked={"max_restarts": 1}).start()
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
    assert 1.0 <= status["elapsed"] <= status["ended"] - status["started"] + 0.5
    assert not (run.rundir / "job.json").exists()
    assert run.left() == []


RAISES = """import os
def load():
    raise TypeError("no such optimizer" + os.environ["RESTART_COUNT"] * (os.environ["RESTART_COUNT"] == "0"))
load()
"""


def test_second_identical_exception_without_a_step_between_ends_the_restarts(make: Callable[..., Run]) -> None:
    """The first one differs by its text."""
    run = make(RAISES, asked={"max_restarts": 4, "meter": True}).start()
    status = run.wait()
    assert (status["state"], status["exit_code"], status["attempt"]) == ("failed", 1, 2)
    detail = status["first_failure"]["detail"]
    assert detail["kind"] == "repeated"
    assert detail["fields"]["what"] == "TypeError: no such optimizer"
    assert detail["fields"]["place"].endswith(":3")
    (event,) = run.events("repeated")
    assert event["steps"] == 0
    assert run.left() == []


REFUSES_LATE = '#!/bin/sh\ncase "$2" in test*) ;; *) sleep 2.5; echo no room >&2; exit 1;; esac\n'
"""The shell of a pool, on a host that answers and can't take its job."""


ON_TWO_HOSTS = """\
import os, sys
place = "import os, sys; at = os.path.dirname(sys.argv[5]) + '/there.json'; "
place += "os.execv(sys.argv[1], [*sys.argv[1:5], at if os.environ['PMI_RANK'] == '1' else sys.argv[5], *sys.argv[6:]])"
os.execv(sys.executable, [sys.executable, *sys.argv[1:4], sys.executable, "-c", place, *sys.argv[4:]])
"""
"""An mpirun whose rank 1 has the job of the other host."""


def test_supervisor_keeps_its_record_while_a_host_joins(make: Callable[..., Run]) -> None:
    run = make("import os, sys\nsys.exit(3 * (os.environ['RESTART_COUNT'] + os.environ['RANK'] == '00'))", 1)
    hosts = ["here", "there"]
    run.of_ranks, run.asked = hosts, {"max_restarts": 1, "min_hosts": 1}
    run.launch = [sys.executable, "-c", ON_TWO_HOSTS, str(STAND_INS / "mpirun.py"), "-n", "2"]
    run.plan = {"files": [{"name": "ssh.sh", "mode": 0o700, "text": ""}]}
    run.listen()
    job = {"rundir": str(run.rundir), "token": run.token, "here": ["there"]}
    (run.rundir / "there.json").write_text(json.dumps(job))
    shell = run.rundir / "ssh.sh"
    shell.write_text(REFUSES_LATE)
    shell.chmod(0o700)
    run.send_go()
    run.wait_until(lambda: run.status["attempt"] == 1)
    assert run.status["hosts"] == hosts
    assert [(row["host"], row["state"]) for row in run.status["ranks"]] == [(host, "starting") for host in hosts]
    status = run.wait()
    assert (status["state"], status["exit_code"], status["attempt"], status["hosts"]) == ("ok", 0, 1, ["here"])
    assert missing(run.output(0, "err").decode(), "[ipexctl: restart 1 of 1 after: rank 0") == [], "nothing was printed"
    assert run.output(0) == b""
    planned = [(event["hosts"], event["absent"]) for event in run.events("hosts")]
    assert planned == [(hosts, {}), (["here"], {"there": "no room"})]
    assert run.left() == []


def test_silent_run_is_reported_with_last_lines_and_not_ended(make: Callable[..., Run]) -> None:
    code = "import os, time\nprint('step', os.environ['RANK'], flush=True)\nwhile not os.path.exists('speak'):\n"
    code += " time.sleep(0.1)\nprint('again', flush=True)\ntime.sleep(2)"
    run = make(code, asked={"hang_after": 2.5}).start()
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


def test_a_silent_run_is_dumped_and_stopped(make: Callable[..., Run]) -> None:
    run = make(HANG_SCRIPT, asked={"hang_after": 1, "on_hang": "stop"}).start()
    status = run.wait()
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    first = status["first_failure"]
    assert (first["kind"], first["rank"], first["ranks"]) == ("hang", None, [0, 1])
    dump = run.rundir / "stacks" / f"dump-{status['silent']['dump']}.json"
    assert dump.read_text().count("wait_for_others") >= 2
    assert dump.stat().st_mode & 0o777 == 0o600
    assert run.left() == []


def test_nothing_is_left_of_a_setup_file_that_fails(make: Callable[..., Run], tmp_path: Path) -> None:
    setup = tmp_path / "setvars.sh"
    text = f"WHOSE={tmp_path}/runs/run0 sleep 600 >/dev/null 2>&1 &\nfalse\n"
    setup.write_text(f'[ -n "$PMI_RANK" ] || return 0\n{text}')
    run = make("print(1)", 1, plan={"setup": str(setup)}).start()
    assert run.wait()["exit_code"] == 127
    assert missing(run.output(0, "err").decode(), "setvars.sh 1") == []
    assert run.left() == []


@pytest.mark.parametrize(
    ("command", "plan", "kind", "file"),
    [
        (["no-such-command"], {}, "no-command", "no-such-command"),
        ("print(1)", {"cwd": "/no/such/directory"}, "no-directory", "/no/such/directory"),
        ("print(1)", {"setup": "SETUP"}, "setup-failed", "SETUP"),
    ],
)
def test_record_has_why_a_command_could_not_be_started(
    make: Callable[..., Run], tmp_path: Path, command: list[str] | str, plan: dict[str, str], kind: str, file: str
) -> None:
    """As fields, for `why`: the sentences are for people."""
    setup = tmp_path / "setup.sh"
    setup.write_text(f"rm {setup}")  # after node0's mpirun
    plan = {name: value.replace("SETUP", str(setup)) for name, value in plan.items()}
    file = file.replace("SETUP", str(setup))
    status = make(command, plan=plan).start().wait()
    problem = status["first_failure"]["detail"]
    assert (problem["kind"], problem["fields"]["file"]) == (kind, file)
    assert all(problem["fields"].values())
    assert status["ranks"][status["first_failure"]["rank"]]["problem"] == problem


def test_a_script_whose_first_line_has_a_windows_line_end_is_not_said_to_be_missing(
    make: Callable[..., Run], tmp_path: Path
) -> None:
    script = tmp_path / "launch.sh"
    script.write_bytes(b"#!/bin/bash\r\nset -e\r\n")
    script.chmod(0o700)
    problem = make([str(script)]).start().wait()["first_failure"]["detail"]
    assert (problem["kind"], problem["fields"]["file"]) == ("no-interpreter", str(script))
    assert problem["fields"]["what"] == r"/bin/bash\r"


@pytest.mark.parametrize(("code", "is_kept"), [(0, True), (3, False)])
def test_connectivity_record_is_kept_only_after_success(make: Callable[..., Run], code: int, is_kept: bool) -> None:
    connectivity = {"key": "k", "checked": 1.5}
    run = make(f"import sys; sys.exit({code})", sent={"connectivity": connectivity})
    record = run.home / "runs" / ".connectivity.json"
    record.parent.mkdir()
    record.write_text('{"key": "of an earlier run", "checked": 1.0}')
    run.start().wait()
    assert [json.loads(path.read_text()) for path in run.home.glob("runs/.connectivity.json")] == (
        [connectivity] if is_kept else []
    )


def test_first_run_saves_the_agent_with_bytecode(make: Callable[..., Run], tmp_path: Path) -> None:
    saved = tmp_path / "agent" / "of-this-version.zip"
    saved.parent.mkdir()
    run = make("print('here')", bytecode=str(saved)).start()
    assert run.wait()["state"] == "ok"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    for python in all_pythons():
        argv = [python, "-I", str(saved), "run.rank", str(tmp_path / "missing")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout) == (111, ""), done.stderr
        assert missing(done.stderr, str(tmp_path / "missing")) == []
    code = "import sys; sys.path.insert(0, sys.argv[1]); import ipexctl.node.run.rank.__main__ as m; print(m.__file__)"
    argv = [sys.executable, "-I", "-c", code, str(saved)]
    imported = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert imported.stdout == f"{saved}/ipexctl/node/run/rank/__main__.pyc\n"


OF_ITS_OWN_SESSION = """
import os, sys
pid = os.fork()
if pid:
    sys.exit(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))
os.setsid()
os.execv(sys.argv[1], sys.argv[1:])
"""


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
    run = make(code, 2, launch=launch, asked={"max_restarts": 1}).start()
    run.wait_for_all(b"here 0")
    suspended = run.status["ranks"][1]["wrapper"]
    os.kill(suspended, signal.SIGSTOP)
    (tmp_path / "fail").touch()
    run.wait_until(lambda: all(b"here 1" in run.output(rank) for rank in (0, 1)), 40)
    os.kill(suspended, signal.SIGCONT)
    status = run.wait(40)
    assert (status["state"], status["attempt"], [rank["exit_code"] for rank in status["ranks"]]) == ("ok", 1, [0, 0])


APART = """
import os, sys, time
sys.path.insert(0, {root!r})
from ipexctl.inrank.meter import RingWriter, Totals
ring, begun = RingWriter(os.environ["IPEXCTL_METER"]), time.monotonic_ns()
for step in range(1, 22):
    ring.write(Totals(begun + step * 50_000_000, step, 8 * step, training={group}))
time.sleep(1.1)
"""


@pytest.mark.parametrize(("group", "samples", "notes"), [(1, 160.0, 1), (2, 320.0, 0)])
def test_ranks_that_train_apart_are_said_once(make: Callable[..., Run], group: int, samples: float, notes: int) -> None:
    script = APART.format(root=str(Path(ipexctl.__file__).parents[1]), group=group)
    run = make(script, asked={"meter": True}, plan={"backend": "gloo"}).start()
    status = run.wait()
    assert (status["state"], status["group"]) == ("ok", {"planned": 2, "seen": group})
    assert status["throughput"]["samples_per_s"] == pytest.approx(samples)
    said = [line for rank in (0, 1) for line in run.output(rank, "err").splitlines()]
    assert [b"--backend none" in line for line in said] == [True] * notes


UNTRAINED = """
import os, sys, time
sys.path.insert(0, {root!r})
from ipexctl.inrank.meter import RingWriter, Totals
RingWriter(os.environ["IPEXCTL_METER"]).write(Totals(time.monotonic_ns(), training=1 << 32))
print("loading", flush=True)
if os.environ["RANK"] == "1": print("needs 2 GPUs, exiting", file=sys.stderr)
sys.exit({code})
"""


@pytest.mark.parametrize(("code", "expected"), [(0, {"rank": 1, "line": "needs 2 GPUs, exiting"}), (3, None)])
def test_a_run_without_a_step_has_the_line_that_names_gpus(
    make: Callable[..., Run], code: int, expected: dict[str, object] | None
) -> None:
    script = UNTRAINED.format(root=str(Path(ipexctl.__file__).parents[1]), code=code)
    status = make(script, asked={"meter": True}, plan={"backend": "gloo"}).start().wait()
    assert (status["exit_code"], status["untrained"]) == (code, expected)
