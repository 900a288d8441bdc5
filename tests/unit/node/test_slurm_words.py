"""Slurm on a job: its end, and the time that is left."""

from __future__ import annotations

import pytest
from slurm_shown import shown

from ipexctl.node.common.job_words import (
    LIMIT_NEAR,
    PREEMPTED,
    REQUEUED,
    STEP_CANCELLED,
    describe_run_end,
)
from ipexctl.node.common.slurm import (
    ask,
    environment_of_srun,
    job_end_in,
    seconds_left,
    variables_of_job,
)
from ipexctl.node.run.decisions.job_end import is_step_cancelled


@pytest.mark.parametrize(
    ("state", "reason", "word"),
    [
        ("RUNNING", "None", ""),
        ("CANCELLED", "None", "CANCELLED"),
        ("TIMEOUT", "TimeLimit", "TIMEOUT"),
        ("COMPLETING", "TimeLimit", "TIMEOUT"),
        ("COMPLETING", "NodeDown", "NODE_FAIL"),
        ("COMPLETING", "None", "COMPLETING"),
        ("SOMETHING_NEW", "None", ""),
    ],
)
def test_the_end_of_a_job_is_read_from_its_state_and_reason(state: str, reason: str, word: str) -> None:
    assert job_end_in(shown(state, reason)) == word
    for text in ("slurm_load_jobs error: Invalid job id specified", "", "JobId= JobState=TIMEOUT", "JobId=12"):
        assert job_end_in(text) == ""


def test_a_job_that_is_ended_to_begin_again_is_known_by_the_count_of_its_starts() -> None:
    """Slurm counts it at once, and says COMPLETING while its processes end, as after scancel."""
    text = shown("COMPLETING", restarts=1)
    assert job_end_in(text, restarts=0) == REQUEUED
    assert job_end_in(text, restarts=1) == job_end_in(text) == "COMPLETING"


@pytest.mark.parametrize(
    ("preempted", "word"),
    [("2026-11-24T09:00:00", "PREEMPTED"), ("2026-11-24T07:00:00", ""), ("None", "")],
    ids=["now", "in an earlier start", "never"],
)
def test_a_job_whose_nodes_another_one_gets_is_preempted_while_it_still_runs(preempted: str, word: str) -> None:
    times = f"StartTime=2026-11-24T08:00:00 EndTime=Unknown PreemptEligibleTime=x PreemptTime={preempted}"
    assert job_end_in(shown("RUNNING", at=times)) == word
    assert job_end_in(shown("PENDING", at=times)) == ""


CANCELLED = "slurmstepd-node2: error: *** STEP 2.3 ON node2 CANCELLED AT 2026-11-24T21:11:04 ***\n"
KILLED = "srun: error: node3: task 1: Killed\n"


def test_step_was_cancelled_if_srun_says_so_and_no_task_has_exited() -> None:
    assert is_step_cancelled("a line\n" + CANCELLED + KILLED)
    assert is_step_cancelled(KILLED + CANCELLED)
    assert not is_step_cancelled(KILLED + "srun: error: node2: task 0: Exited with exit code 143\n" + CANCELLED)
    assert not is_step_cancelled(KILLED)
    assert not is_step_cancelled("print: " + CANCELLED)


def test_each_word_is_a_clause_and_an_unknown_one_none() -> None:
    assert describe_run_end("SOMETHING_NEW") == ""
    assert describe_run_end("NODE_FAIL", "12") == "its Slurm job 12 lost a node"
    assert all("Slurm" in describe_run_end(word) for word in (PREEMPTED, REQUEUED, STEP_CANCELLED, LIMIT_NEAR))


@pytest.mark.parametrize("argv", [["no-such-program"], ["sh", "-c", "echo why; exit 1"], ["sleep", "60"]])
def test_a_command_of_slurm_without_an_answer(monkeypatch: pytest.MonkeyPatch, argv: list[str]) -> None:
    assert ask(["echo", "an answer"]) == "an answer\n"
    monkeypatch.setattr("ipexctl.node.common.slurm.QUEUE_ANSWER", 0.2)
    assert ask(argv) == ""


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        ("11:58\n", 718),
        ("1:00:00", 3600),
        ("2-03:04:05", 183845),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_the_time_left_of_a_job(answer: str, seconds: int | None) -> None:
    assert seconds_left(answer) == seconds


def test_srun_gets_the_variables_of_the_job_alone() -> None:
    of_script = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "9", "SLURM_PROCID": "0", "SLURM_CPU_BIND": "quiet", "PATH": ""}
    assert environment_of_srun(variables_of_job(of_script)) == {"SLURM_JOB_ID": "7"}
