"""Knows when Slurm ends the job of a run, and when to notify its ranks and stop the run before that. Pure.

The steps are `notice`, a minute before the end, so that a rank can write a checkpoint, and `stop`, 15 s before, so that
ranks end and their output is kept. Slurm is asked when the run begins, every ten minutes, and before each step, because
a limit can be changed while the job runs. Without an answer, its last one counts. A job without a limit has no steps.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ipexctl.node.common.limits import JOB_NOTICE, JOB_STOP

ASK_INTERVAL = 600.0
FIRST_INTERVAL = 30.0
"""Seconds after a first question without an answer; doubles each time. An unknown limit has no steps."""
Step = Literal["notice", "stop"]
STEPS: tuple[tuple[Step, float], ...] = (("notice", JOB_NOTICE), ("stop", JOB_STOP))


class JobLimit(NamedTuple):
    """What is known of the time limit of one job."""

    is_asked: bool = False
    ask_at: float = 0.0
    ends_at: float | None = None
    interval: float = FIRST_INTERVAL
    length: float | None = None
    """Seconds from the first answer to the end: a short limit has its steps later."""
    due: tuple[tuple[Step, float], ...] = STEPS

    def is_due(self, now: float) -> bool:
        return not self.is_asked and now >= self.ask_at

    def with_answer(self, asked_at: float, seconds: int | None) -> JobLimit:
        """The limit from Slurm's answer; None: no limit."""
        return self._replace(
            interval=ASK_INTERVAL,
            ends_at=None if seconds is None else asked_at + seconds,
            length=float(seconds) if self.length is None and seconds is not None else self.length,
        )

    def steps(self, now: float) -> tuple[tuple[Step, ...], JobLimit]:
        """The steps due after a question, and the limit without them."""
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
        """Time of a step this long before the end; scaled down for a short limit."""
        return (self.ends_at or 0.0) - min(seconds, (self.length or 0.0) * seconds / (4 * JOB_NOTICE))
