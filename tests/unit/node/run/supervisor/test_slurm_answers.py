"""Questions of a supervisor to Slurm about its job, with programs in place of Slurm's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from slurm_shown import shown

from agent_helpers import wait_until
from ipexctl.node.common.batch_job import job_of
from ipexctl.node.common.job_words import describe_job_end
from ipexctl.node.run.decisions.supervisor_state import TimeLeft
from ipexctl.node.run.rank import orphaned_job
from ipexctl.node.run.rank.orphaned_job import end_orphaned_job, ends_orphaned_job
from ipexctl.node.run.supervisor.run_job import ANSWER, RunJob
from message_data import missing
from plan_helpers import small_plan


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


@pytest.mark.parametrize(
    ("files", "asked", "left"),
    [
        ({"requeue", "env"}, "scontrol requeue 7", {"job", "requeue", "env"}),
        ({"env"}, "scancel 7", {"job", "outcome.json"}),
    ],
)
def test_an_orphaned_job_is_ended_or_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: set[str], asked: str, left: set[str]
) -> None:
    """Slurm shows it as active until it was asked, and node0 as one of its nodes at first."""
    calls, seen, place = tmp_path / "calls", tmp_path / "seen", tmp_path / "slurm"
    place.mkdir()
    for name in files:
        (place / name).touch()
    (place / "job").write_text("7\n")
    programs = {
        "scontrol": f'[ "$1" = show ] || echo "scontrol $*" >>{calls}\n'
        f'if [ -e {calls} ]; then echo "{shown("COMPLETING", restarts=1)}"; else echo "{shown("RUNNING")}"; fi\n',
        "squeue": f"[ -e {seen} ] || echo 7; touch {seen}\n",
        "scancel": f'echo "scancel $*" >>{calls}\n',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.setattr(orphaned_job, "ORPHAN_CHECK", 0.01)
    end_orphaned_job(str(tmp_path))
    assert calls.read_text() == f"{asked}\n"
    assert {path.name for path in place.iterdir()} == left
    if "outcome.json" in left:
        job = job_of(str(tmp_path))
        assert job is not None
        assert missing(describe_job_end(job), "Slurm job 7 lost a node") == []


def test_the_lowest_ranks_of_three_hosts_beside_node0_end_a_job_that_slurm_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tuple(f"node{number}" for number in range(1, 6))
    ranks = range(10)
    plan = small_plan([hosts[rank // 2] for rank in ranks], home=str(tmp_path))
    rundir = tmp_path / "runs/r"
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert not any(ends_orphaned_job(plan, rank) for rank in ranks), "it was submitted without --min-hosts"
    (rundir / "slurm").mkdir(parents=True)
    (rundir / "slurm/no-kill").touch()
    assert [rank for rank in ranks if ends_orphaned_job(plan, rank)] == [2, 4, 6]
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.delenv("SLURM_JOBID", raising=False)
    assert not ends_orphaned_job(plan, 2)
