"""Each step after the first rank lives is broken: no call ends with an error while a rank that it started lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.node.common.processes import command_lines
from message_data import missing
from needs import require

SCRIPT = "import time\nfor step in range(1200):\n    print('step', step, flush=True)\n    time.sleep(0.5)\n"
STEPS = [
    *(("start", error) for error in ("full", "HostError", "UserError", "ValueError", "AgentEnded", "TimedOut")),
    ("start", "chmod HOME"),  # the home is refused from here on
    ("start", "damage status.json"),
    ("start", "damage agent.zip"),
    ("ipexctl.run.start.exclusive:HostLocks.leave", "full"),
    ("ipexctl.run.start.pipeline:run_in_background", "ValueError"),
    ("ipexctl.run.start.pipeline:collect_notes", "ValueError"),
    ("ipexctl.commands.run_call:RunOfCall.on_started", "ValueError"),
    ("ipexctl.remote.connector:SessionPool.detach", "full"),
    ("ipexctl.remote.connector:SessionPool.close", "HostError"),
    ("ipexctl.commands.run_call:RunOfCall.follow", "ValueError"),
    ("ipexctl.commands.watch:watch_run", "UserError"),
    ("ipexctl.commands.watch:open_view", "ValueError"),
    ("ipexctl.commands.watch:LocalCopy", "full"),
    ("ipexctl.commands.watch:_Watching._follow", "UserError"),
    ("ipexctl.run.follow_run:Follower.follow", "HostError"),
    ("ipexctl.run.start.begin:Launch.follow", "UserError"),
    ("ipexctl.run.start.begin:Launch.follow", "full"),
]


def processes_of(home: Path) -> list[str]:
    lines = (line.replace(b"\0", b" ").decode(errors="replace") for _, line in command_lines())
    return [line for line in lines if f"{home}/.ipexctl/runs/" in line]


def call(home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, *argv],
        cwd=home / "project",
        env=environ,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.parametrize(("target", "action"), STEPS)
def test_a_call_that_fails_after_its_first_rank_lives_leaves_none(target: str, action: str, tmp_path: Path) -> None:
    require("ps")
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    (home / "project/train.py").write_text(SCRIPT)
    words = ["run", "--hosts", "localhost", "-n", "1", "--python", sys.executable, "--plain", "--reconnect", "5"]
    words += ["--exclusive"] * ("HostLocks" in target)
    breaking = str(Path(__file__).with_name("breaking_call.py"))
    done = call(home, breaking, target, action.replace("HOME", str(home)), *words, "train.py")
    said = done.stdout + done.stderr
    assert done.returncode, said
    wait_until(lambda: not processes_of(home), 5, lambda: (said, processes_of(home)))


@pytest.mark.parametrize("breaks", ["chmod 777 ../", "echo { >RUN/status.json", "mv RUN RUN.away"])
def test_whatever_became_of_its_home_and_its_record_a_run_is_stopped(breaks: str, tmp_path: Path) -> None:
    require("ps")
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    (home / "project/train.py").write_text(SCRIPT)
    words = ["run", "--hosts", "localhost", "-n", "1", "--python", sys.executable, "--detach", "train.py"]
    run = call(home, "-m", "ipexctl", *words).stdout.strip()
    assert len(processes_of(home)) > 1
    # The supervisor writes its status again as soon as something has changed.
    os.system(f"cd {home}/project && {breaks.replace('RUN', f'{home}/.ipexctl/runs/{run}')}")
    stopped = call(home, "-m", "ipexctl", "stop", run)
    assert (stopped.returncode, processes_of(home)) == (0, []), stopped
    assert missing(stopped.stderr, f"{run} was stopped 1 rank on 1 node") == []
