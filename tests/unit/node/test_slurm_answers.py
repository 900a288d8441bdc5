"""How a supervisor asks Slurm about its job, with programs in place of Slurm's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from slurm_shown import shown

from agent_helpers import wait_until
from ipexctl.node.run.machine_state import TimeLeft
from ipexctl.node.run.run_job import ANSWER, RunJob


@pytest.mark.parametrize(
    ("requeue", "restarts", "is_requeued"),
    [("exit 0", 0, True), ("exit 1", 0, False), ("exit 1", 1, True)],
    ids=["taken", "refused", "taken-without-an-answer"],
)
def test_a_requeue_counts_if_slurm_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requeue: str, restarts: int, is_requeued: bool
) -> None:
    program = tmp_path / "scontrol"
    text = shown("COMPLETING", restarts=restarts)
    program.write_text(f'#!/bin/sh\n[ "$1" = show ] && {{ echo "{text}"; exit; }}\n{requeue}\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    job = RunJob(str(tmp_path))
    assert job.requeue() == is_requeued


@pytest.mark.parametrize(("state", "left"), [("queued", {"env", "waits"}), ("failed", set()), ("ok", set())])
def test_secrets_go_with_the_end_of_the_run_and_not_before(tmp_path: Path, state: Any, left: set[str]) -> None:
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm/env").touch()
    RunJob(str(tmp_path)).end(state)
    assert {path.name for path in (tmp_path / "slurm").iterdir()} == left


@pytest.mark.parametrize(
    ("squeue", "after", "answer"),
    [
        ("echo 1:05", 1.0, TimeLeft(100.0, is_answer=True, seconds=65)),
        ("echo UNLIMITED", 1.0, TimeLeft(100.0, is_answer=True)),
        ("exit 1", 1.0, TimeLeft(100.0, is_answer=False)),
        ("exec sleep 60", ANSWER + 0.1, TimeLeft(100.0, is_answer=False)),
        ("", 1.0, TimeLeft(100.0, is_answer=False)),
    ],
)
def test_each_question_for_the_time_has_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squeue: str, after: float, answer: TimeLeft
) -> None:
    if squeue:
        program = tmp_path / "squeue"
        program.write_text(f"#!/bin/sh\n{squeue}\n")
        program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if squeue else str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    job = RunJob(str(tmp_path))
    assert job.time_left(100.0) is None, "nothing was asked"
    job.ask_time_left(100.0)
    if "sleep" in squeue:
        assert job.time_left(100.0 + ANSWER) is None
    answers = iter(lambda: job.time_left(100.0 + after), answer)  # ends with this answer
    wait_until(lambda: next(answers, answer), 10)
    assert job.time_left(200.0) is None
    job.close()
