"""The supervisor before the time limit of a Slurm job, and in the job's next start.

Slurm's programs are stand-ins: they answer as `squeue -o %L` and `scontrol` do, and refuse everything else.
tests/lab/test_submit.py has the real ones.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from run_helpers import Run

from agent_helpers import wait_until

pytest_plugins = ["run_fixtures"]

SQUEUE = """\
#!/bin/sh
[ "$*" = "--noheader --jobs 12 --format %L" ] || exit 1
left=$(($(cat {at}/ends) - $(date +%s)))
left=$((left > 0 ? left : 0))
printf '%d:%02d\\n' $((left / 60)) $((left % 60))
"""
SCONTROL = """\
#!/bin/sh
case "$*" in
"show job -o 12")
    echo "JobId=12 JobName=x JobState=RUNNING Reason=None Dependency=(null) Requeue=1" \\
        "Restarts=$(wc -l <{at}/requeued) BatchFlag=1 ExitCode=0:0 NodeList=here BatchHost=here" ;;
"requeue 12") echo 12 >>{at}/requeued ;;
*) exit 1 ;;
esac
"""
SAVES = """\
import os, signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
print("begun", os.environ["RESTART_COUNT"], flush=True)
time.sleep({seconds})
"""
GOES_ON = "import time\nprint('begun', flush=True)\ntime.sleep(60)"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("squeue", SQUEUE), ("scontrol", SCONTROL)):
        (programs / name).write_text(text.format(at=tmp_path))
        (programs / name).chmod(0o700)
    (tmp_path / "requeued").touch()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    runs: list[Run] = []

    def start(command: str, *, seconds: int = 8, may_requeue: bool = True, **more: Any) -> Run:
        (tmp_path / "ends").write_text(str(int(time.time()) + seconds))
        run = Run(tmp_path / "home", command, 2, **{"go": {"by_slurm": True}, **more})
        run.listen()
        (run.rundir / "slurm").mkdir(exist_ok=True)
        if may_requeue:
            (run.rundir / "slurm/requeue").touch()
        run.write_job()
        run.send_go()
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.close()


def status_of(run: Run, *states: str) -> dict[str, Any]:
    wait_until(lambda: run.status["state"] in states, 45, lambda: json.dumps(run.status))
    return dict(run.status)


def test_ranks_that_save_and_end_at_the_notice_go_on_in_the_next_start(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(SAVES.format(seconds=60), seconds=24)
    status = status_of(run, "queued", "ok", "stopped", "failed")
    assert (status["state"], status["job_end"], status["ended"]) == ("queued", "JOB_REQUEUED", None)
    assert (tmp_path / "requeued").read_text() == "12\n"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    again = status_of(start(SAVES.format(seconds=0), seconds=59), "ok", "failed", "stopped")
    assert (again["state"], again["attempt"], len(again["attempts"])) == ("ok", 1, 1)
    assert again["started"] == status["started"]
    output = (run.rundir / "ranks/0000.out").read_text().splitlines()
    assert [output[0], output[1], output[-1]] == ["begun 0", "saved", "begun 1"]
    assert "restart" in output[2]


def test_ranks_without_a_handler_go_on_until_the_run_is_stopped(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start(GOES_ON, may_requeue=False)
    status = status_of(run, "stopped", "failed", "ok")
    assert (status["state"], status["exit_code"]) == ("stopped", 143)
    events = [json.loads(line) for line in (run.rundir / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "job-limit"] == ["notice", "stop"]
    assert "noticed" not in [event["event"] for event in events]
