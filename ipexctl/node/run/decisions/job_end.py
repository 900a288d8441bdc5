"""Decides how a Slurm job affects the end of its run: when to notify the ranks and stop the run before the job ends,
and whether Slurm stopped the run. Pure.

Slurm's signals reach the processes in any order; a failure by a signal is Slurm's doing if Slurm says that it is ending
the job.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Literal, NamedTuple

from ipexctl.node.common import job_words, slurm
from ipexctl.node.common.node_limits import JOB_NOTICE, JOB_STOP

if TYPE_CHECKING:
    from ipexctl.node.common.records import Failure, State

STOPPED = 128 + signal.SIGTERM
_STEP_CANCELLED = re.compile(r"^slurmstepd\S*: error: \*\*\* STEP [0-9.]+ ON \S+ CANCELLED AT ", re.MULTILINE)
_TASK_EXITED = re.compile(r"^srun: error: \S+: tasks? \S+: Exited ", re.MULTILINE)


def is_step_cancelled(log: str) -> bool:
    """True if srun's log says that Slurm cancelled the step, which Slurm itself forgets. srun prints the same line when
    it is ended itself, but after it has reported tasks that exited. Pure."""
    return _STEP_CANCELLED.search(log) is not None and _TASK_EXITED.search(log) is None


class RunEnd(NamedTuple):
    state: State
    code: int
    reason: str
    first: Failure | None
    is_limit_near: bool = False
    """True once the ranks were told that the job is about to end."""
    has_noticed: bool = False
    """True if a rank handled the signal for that."""
    is_asked_to_stop: bool = False
    """True if a user or Slurm sent the supervisor a signal."""

    @property
    def is_by_signal(self) -> bool:
        """True if somebody ended the run or its launcher, as a scheduler does with a job that it takes away."""
        first = self.first
        return first is not None and (
            first.signal == signal.SIGTERM or first.kind == "mpirun" or _detail_of(first) == "wrapper-killed"
        )

    @property
    def is_by_limit(self) -> bool:
        """True if the run was stopped, or its ranks exited, because the end of the job was near."""
        is_ended = self.state == "stopped" or (self.state == "ok" and self.has_noticed)
        return self.is_limit_near and is_ended and not self.is_asked_to_stop


def _detail_of(failure: Failure | None) -> str:
    return failure.detail.kind if failure is not None and failure.detail is not None else ""


def find_word(end: RunEnd, shown: str, restarts: int, *, is_step_cancelled: bool) -> str:
    """The word for what Slurm did, for `job_words.describe_run_end`; empty if Slurm did nothing. `shown`: output of
    `show_job`, empty if Slurm was not asked. Pure."""
    if end.is_by_limit:
        return job_words.LIMIT_NEAR
    word = slurm.job_end_in(shown, restarts)
    return word or (job_words.STEP_CANCELLED if end.is_by_signal and is_step_cancelled else "")


def decide_job_end(end: RunEnd, word: str) -> RunEnd:
    """The end of the run if Slurm did what `word` says."""
    if word and end.is_by_signal:
        return end._replace(state="stopped", code=STOPPED, reason="it was stopped", first=None)
    return end


ASK_INTERVAL = 600.0
FIRST_INTERVAL = 30.0
"""Seconds until Slurm is asked again if it did not answer the first question; doubles each time."""
Step = Literal["notice", "stop"]
STEPS: tuple[tuple[Step, float], ...] = (("notice", JOB_NOTICE), ("stop", JOB_STOP))


class JobLimit(NamedTuple):
    """What is known about a job's time limit. Times are monotonic.

    Slurm is asked when the run begins, every ten minutes, and before each step, because a limit can change while the
    job runs. If it does not answer, its last answer counts.
    """

    is_asked: bool = False
    ask_at: float = 0.0
    ends_at: float | None = None
    interval: float = FIRST_INTERVAL
    length: float | None = None
    """Seconds from the first answer to the end. If they are few, the steps come closer to the end."""
    due: tuple[tuple[Step, float], ...] = STEPS

    def is_due(self, now: float) -> bool:
        """True if the scheduler should be asked again for the time left."""
        return not self.is_asked and now >= self.ask_at

    def with_answer(self, asked_at: float, seconds: int | None) -> JobLimit:
        """Take Slurm's answer. `seconds`: until the job's end; None without a limit."""
        return self._replace(
            interval=ASK_INTERVAL,
            ends_at=None if seconds is None else asked_at + seconds,
            length=float(seconds) if self.length is None and seconds is not None else self.length,
        )

    def steps(self, now: float) -> tuple[tuple[Step, ...], JobLimit]:
        """The steps that are due, and the limit without them."""
        count = 0
        while self.ends_at is not None and count < len(self.due) and now >= self._at(self.due[count][1]):
            count += 1
        left, ask_at = self.due[count:], now + self.interval
        if self.ends_at is not None and left:
            ask_at = min(ask_at, self._at(left[0][1]))
        interval = min(2 * self.interval, ASK_INTERVAL)
        return tuple(step for step, _ in self.due[:count]), self._replace(due=left, ask_at=ask_at, interval=interval)

    def left(self, now: float) -> float:
        """Seconds until Slurm ends the job; 0 if unknown."""
        return max(0.0, self.ends_at - now) if self.ends_at is not None else 0.0

    def _at(self, seconds: float) -> float:
        """When a step is due that comes `seconds` before the end, or later if the limit is short."""
        return (self.ends_at or 0.0) - min(seconds, (self.length or 0.0) * seconds / (4 * JOB_NOTICE))
