"""Questions of a supervisor to Slurm about its job, with programs in place of Slurm's."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_helpers import wait_until
from ipexctl.node.run.decisions.supervisor_state import TimeLeft
from ipexctl.node.run.supervisor.run_job import ANSWER, RunJob


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
    job = RunJob()
    assert job.time_left(100.0) is None, "nothing was asked"
    job.ask_time_left(100.0)
    if "sleep" in squeue:
        assert job.time_left(100.0 + ANSWER) is None
    answers = iter(lambda: job.time_left(100.0 + after), answer)  # ends with this answer
    wait_until(lambda: next(answers, answer), 10)
    assert job.time_left(200.0) is None
    job.close()
