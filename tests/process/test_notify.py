"""The command of `run --notify`: on node0 or by the call, once, and what becomes of one that fails or hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from run_helpers import Run

from agent_helpers import wait_until
from ipexctl.node.common.processes import command_lines, is_running
from ipexctl.node.run.notify import FILE, LOG, claim, run_command

pytest_plugins = ["run_fixtures"]

SHORT = "import time\ntime.sleep(0.3)"
FAILS = "import sys, time\ntime.sleep(0.3)\nsys.exit(7)"


def notify(command: str, claim_after: float = 0.0, timeout: float = 20.0) -> dict[str, Any]:
    """For `Run`."""
    limits = {"NOTIFY_CLAIM": claim_after, "NOTIFY": timeout}
    return {"sent": {"notify": command}, "asked": {"is_followed": claim_after > 0}, "limits": limits}


def outcome(run: Run) -> dict[str, Any]:
    """How the command ended on node0."""
    wait_until(lambda: '"exit_code"' in run.said(FILE), 30, lambda: (run.said(FILE), run.said(LOG)))
    document: dict[str, Any] = json.loads(run.said(FILE))
    return document


def test_node0_gives_the_summary_to_the_command_once(make: Callable[..., Run], tmp_path: Path) -> None:
    got = tmp_path / "got"
    run = make(FAILS, **notify(f"cat >> {got}")).start()
    assert run.wait()["state"] == "failed"
    assert outcome(run)["by"] == "node0"
    summary = json.loads(got.read_text())  # of two there would be more than one document
    assert (summary["schema"], summary["id"], summary["state"]) == ("ipexctl.run/1", run.id, "failed")
    assert (summary["exit_code"], summary["world_size"], summary["hosts"]) == (7, 2, ["here"])
    assert summary["seconds"] > 0.2
    assert (run.rundir / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.core
def test_call_that_claims_the_command_in_time_keeps_node0_from_running_it(
    make: Callable[..., Run], tmp_path: Path
) -> None:
    got = tmp_path / "got"
    run = make(SHORT, **notify(f"echo node0 >> {got}", claim_after=20.0)).start()
    run.wait()
    wait_until(lambda: any("run.notify" in line for line in run.left()), 20, run.left)
    done = subprocess.run(
        [*run.program("run.notify"), "claim"], input=json.dumps({"home": str(run.home), "id": run.id}) + "\n",
        capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == {"event": "done", "claimed": True}
    wait_until(lambda: not run.left(), 20, run.left)
    assert not got.exists()
    assert json.loads(run.said(FILE))["by"] == "call"
    assert not claim(str(run.rundir), "call")


def test_node0_waits_for_a_call_before_it_runs_the_command(make: Callable[..., Run], tmp_path: Path) -> None:
    run = make(SHORT, **notify("true", claim_after=1.5)).start()
    run.wait()
    ended = time.monotonic()
    assert not (run.rundir / FILE).exists()
    assert outcome(run)["exit_code"] == 0
    assert time.monotonic() - ended > 1


def test_of_many_claims_one_counts_and_a_run_without_record_has_none(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        claimed = list(pool.map(lambda number: claim(str(tmp_path), str(number)), range(64)))
    assert claimed.count(True) == 1
    assert not claim(str(tmp_path / "none"), "call")


@pytest.mark.parametrize(
    ("command", "timeout", "code"),
    [("echo it broke; exit 3", 20.0, 3), ("sleep 100 & echo begun; sleep 100", 1.0, None), ("kill -9 $$", 20.0, 137)],
)
def test_command_that_fails_or_hangs_is_recorded_and_changes_nothing(
    make: Callable[..., Run], command: str, timeout: float, code: int | None
) -> None:
    run = make(SHORT, **notify(command, timeout=timeout)).start()
    status = run.wait()
    assert outcome(run)["exit_code"] == code
    assert (status["state"], status["exit_code"]) == ("ok", 0)
    assert run.status == status
    assert "begun" in run.said(LOG) or "broke" in run.said(LOG) or code == 137
    wait_until(lambda: not run.left(), 20, run.left)


def test_hanging_command_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with (tmp_path / "output").open("wb") as output:
        end = run_command(f"sleep 100 & echo $! $$ > {pids}; wait", "{}", 0.5, output)
    assert (end.exit_code, end.error) == (None, "")
    wait_until(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()), 10)


def test_text_of_the_command_stands_in_no_process_and_no_file(make: Callable[..., Run], tmp_path: Path) -> None:
    token = f"token-{os.urandom(8).hex()}"
    go = tmp_path / "go"
    # Only builtins of sh get the token, so that any process that shows it is ipexctl's.
    command = f"t={token}; : > {tmp_path}/begun; while ! test -e {go}; do sleep 0.1; done; echo ${{#t}}"
    run = make(SHORT, **notify(command, claim_after=0.5)).start()
    wait_until(lambda: (tmp_path / "begun").exists(), 30)
    shown = [line for _, line in command_lines("environ") if token.encode() in line]
    go.touch()
    assert outcome(run)["exit_code"] == 0
    assert run.said(LOG) == f"{len(token)}\n"
    assert shown == []
    files = [path for path in run.home.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
    assert files == []


def test_command_of_several_lines_finds_all_of_the_summary(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("wb") as file:
        end = run_command('read first\necho "got $first"\n\ncat # é\n', "one\ntwo\n", 20, file)
    assert (end.exit_code, output.read_text()) == (0, "got one\ntwo\n")


def test_run_that_could_not_be_started_notifies_nobody(make: Callable[..., Run], tmp_path: Path) -> None:
    run = make(SHORT, launch=["/no/such/mpirun"], **notify(f"touch {tmp_path}/got"))
    run.listen()
    run.send_go()
    assert run.started["event"] == "failed"
    wait_until(lambda: not run.left(), 20, run.left)
    assert not (run.rundir / FILE).exists()


def test_rank_gets_no_secret_of_the_command_and_the_command_none_of_the_ranks(
    make: Callable[..., Run], tmp_path: Path
) -> None:
    run = make(
        SHORT, secrets={"SECRET_OF_RANKS": "value"}, **notify(f'env > {tmp_path}/env; test -z "$SECRET_OF_RANKS"')
    ).start()
    assert outcome(run)["exit_code"] == 0
    assert "SECRET_OF_RANKS" not in (tmp_path / "env").read_text()


def test_run_on_this_machine_whose_call_sees_the_end(tmp_path: Path) -> None:
    """The whole way, with the call's own environment and directory."""
    project = tmp_path / "project"
    project.mkdir()
    (project / ".ipexctlignore").touch()
    (project / "ends.py").write_text(FAILS)
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "MINE": "yes"}
    done = subprocess.run(
        [sys.executable, "-m", "ipexctl", "run", "--hosts", "localhost", "--python", sys.executable, "-n", "1",
         "--notify", "cat > got; echo $MINE >> got; echo printed; exit 4", "ends.py"],
        env={**os.environ, **home, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=project, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert done.stdout == ""
    assert "printed\n" in done.stderr
    assert "exit code 4" in done.stderr
    *summary, mine = (project / "got").read_text().splitlines()
    document = json.loads("\n".join(summary))
    assert (document["state"], document["exit_code"], document["hosts"]) == ("failed", 7, ["localhost"])
    assert mine == "yes"
    (record,) = (tmp_path / ".ipexctl/runs").glob("*/notify.json")
    assert json.loads(record.read_text())["by"] == "call"
    assert document["id"] == record.parent.name
