"""A job of Slurm and the end of a run in it: the steps before it, and the word for it."""

from __future__ import annotations

from typing import Any

import pytest
from slurm_shown import shown

from ipexctl.node.common.records import Failure
from ipexctl.node.common.slurm import seconds_left
from ipexctl.node.run.decisions.job_end import (
    JobLimit,
    RunEnd,
    decide_job_end,
    find_word,
)

BY_SIGNAL = Failure(0, "node2", signal=15, kind="signal")
RAISED = Failure(0, "node2", exit_code=1, kind="exit")


def end(state: Any, first: Failure | None = None, **more: Any) -> RunEnd:
    return RunEnd(state, {"ok": 0, "stopped": 143}.get(state, 1), "why", first, **more)


@pytest.mark.parametrize(
    ("found", "state", "restarts", "is_step_cancelled", "word"),
    [
        (end("ok"), "RUNNING", 0, False, ""),
        (end("failed", BY_SIGNAL), "RUNNING", 0, False, ""),
        (end("failed", BY_SIGNAL), "RUNNING", 0, True, "STEP_CANCELLED"),
        (end("failed", RAISED), "RUNNING", 0, True, ""),
        (end("failed", BY_SIGNAL), "CANCELLED", 0, True, "CANCELLED"),
        (end("failed", BY_SIGNAL), "COMPLETING", 1, False, "JOB_REQUEUED"),
        (end("stopped", is_limit_near=True), "RUNNING", 0, False, "LIMIT_NEAR"),
        (end("ok", is_limit_near=True, has_noticed=True), "RUNNING", 0, False, "LIMIT_NEAR"),
        (end("ok", is_limit_near=True), "RUNNING", 0, False, ""),
        (end("stopped", is_limit_near=True, is_asked_to_stop=True), "RUNNING", 0, False, ""),
    ],
)
def test_word(found: RunEnd, state: str, restarts: int, is_step_cancelled: bool, word: str) -> None:
    assert find_word(found, shown(state, restarts=restarts), 0, is_step_cancelled=is_step_cancelled) == word


def test_a_failure_by_a_signal_is_what_slurm_did() -> None:
    decided = decide_job_end(end("failed", BY_SIGNAL), "CANCELLED")
    assert (decided.state, decided.code, decided.first) == ("stopped", 143, None)
    kept = decide_job_end(end("failed", RAISED), "CANCELLED")
    assert (kept.state, kept.code, kept.first, kept.reason) == ("failed", 1, RAISED, "why")


class Squeue:
    """Answers with the time until `end`, or with `words` in its place, and counts how often it was asked."""

    def __init__(self, end: int | None = None, words: str = "") -> None:
        self.end, self.words = end, words
        self.count = 0

    def answer(self, limit: JobLimit, now: int) -> JobLimit:
        self.count += 1
        minutes, seconds = divmod((self.end or 0) - now, 60)
        if self.words == "silent":
            return limit
        return limit.with_answer(now, seconds_left(self.words or f"{minutes}:{seconds}"))


def steps_of(squeue: Squeue, seconds: int, at: int = -1, delay: int = 1, **change: object) -> dict[str, int]:
    """Step → second. At one second, something changes. Slurm answers after a second, or not within `delay`."""
    found: dict[str, int] = {}
    limit, asked_at = JobLimit(), 0
    for now in range(seconds):
        if now == at:
            vars(squeue).update(change)
        if limit.is_due(now):
            limit, asked_at = limit._replace(is_asked=True), now
        elif limit.is_asked and now >= asked_at + (delay if squeue.words == "silent" else 1):
            limit = squeue.answer(limit, asked_at)._replace(is_asked=False)
            steps, limit = limit.steps(now)
            found |= dict.fromkeys(steps, now)
    return found


def test_ranks_are_told_a_minute_before_the_end_and_the_run_is_stopped_after_that() -> None:
    squeue = Squeue(3600)
    assert steps_of(squeue, 3600) == {"notice": 3541, "stop": 3586}
    assert squeue.count <= 9


def test_a_limit_that_is_changed_while_the_job_runs_counts() -> None:
    assert steps_of(Squeue(300), 500, at=230, end=900) == {}
    assert steps_of(Squeue(3600), 1200, at=100, end=1100) == {"notice": 1041, "stop": 1086}
    assert steps_of(Squeue(300), 300, at=270, end=900) == {"notice": 241}


def test_a_short_limit_has_its_steps_later() -> None:
    assert steps_of(Squeue(60), 60) == {"notice": 46, "stop": 58}


@pytest.mark.parametrize("delay", [1, 10], ids=["an-error", "no-answer"])
def test_the_last_answer_counts_if_slurm_is_silent(delay: int) -> None:
    found = steps_of(Squeue(300), 300, at=200, words="silent", delay=delay)
    assert 240 <= found["notice"] <= 252
    assert 285 <= found["stop"] <= 297


@pytest.mark.parametrize("delay", [1, 10], ids=["an-error", "no-answer"])
def test_slurm_is_asked_again_soon_until_it_has_answered_once(delay: int) -> None:
    squeue = Squeue(300, "silent")
    found = steps_of(squeue, 300, at=80, words="", delay=delay)
    assert 240 <= found["notice"] <= 270
    assert found["stop"] <= 297


@pytest.mark.parametrize("answer", ["UNLIMITED", "silent"])
def test_without_a_limit_nothing_is_due(answer: str) -> None:
    squeue = Squeue(words=answer)
    assert steps_of(squeue, 7200) == {}
    assert squeue.count <= 16
