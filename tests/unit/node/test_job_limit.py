"""The steps before the end of a Slurm job, with the answers of a program in place of squeue."""

from __future__ import annotations

import subprocess

import pytest

from ipexctl.node.run.job_limit import JobLimit


class Squeue:
    """Answers with the time until `end`, or with `words` in its place, and counts how often it was asked."""

    def __init__(self, end: int | None = None, words: str = "") -> None:
        self.end, self.words = end, words
        self.now = self.count = 0

    def ask(self) -> subprocess.Popen[bytes] | None:
        self.count += 1
        minutes, seconds = divmod((self.end or 0) - self.now, 60)
        script = {"silent": "exec sleep 60", "failed": "exit 1"}.get(
            self.words, f"echo {self.words or f'{minutes}:{seconds}'}"
        )
        return None if self.words == "absent" else subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE)


def steps_of(squeue: Squeue, seconds: int, at: int = -1, **change: object) -> dict[str, int]:
    """Step → second. At one second, something changes."""
    found: dict[str, int] = {}
    limit = JobLimit("7", squeue.ask)
    for now in range(seconds):
        squeue.now = now
        if now == at:
            vars(squeue).update(change)
        found |= dict.fromkeys(limit.check(now), now)
        query = limit._query
        if query is not None and query.args[-1] != "exec sleep 60":  # type: ignore[index]
            query.wait()
    limit.close()
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


@pytest.mark.parametrize("silence", ["silent", "failed", "absent"])
def test_the_last_answer_counts_if_slurm_is_silent(silence: str) -> None:
    found = steps_of(Squeue(300), 300, at=200, words=silence)
    assert 240 <= found["notice"] <= 252
    assert 285 <= found["stop"] <= 297


@pytest.mark.parametrize("silence", ["silent", "failed", "absent"])
def test_slurm_is_asked_again_soon_until_it_has_answered_once(silence: str) -> None:
    squeue = Squeue(300, silence)
    found = steps_of(squeue, 300, at=80, words="")
    assert 240 <= found["notice"] <= 270
    assert found["stop"] <= 297


@pytest.mark.parametrize("answer", ["UNLIMITED", "silent", "absent"])
def test_without_a_limit_nothing_is_due(answer: str) -> None:
    squeue = Squeue(words=answer)
    assert steps_of(squeue, 7200) == {}
    assert squeue.count <= 16
