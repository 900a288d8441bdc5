"""Knows when Slurm will end a run's job, and when to notify the ranks and stop the run before that. Pure.

Slurm is asked when the run begins, every ten minutes, and before each step, because a limit can change while the job
runs. If it does not answer, its last answer counts.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ipexctl.node.common.limits import JOB_NOTICE, JOB_STOP

ASK_INTERVAL = 600.0
FIRST_INTERVAL = 30.0
"""Seconds until Slurm is asked again if it did not answer the first question; doubles each time."""
Step = Literal["notice", "stop"]
STEPS: tuple[tuple[Step, float], ...] = (("notice", JOB_NOTICE), ("stop", JOB_STOP))


class JobLimit(NamedTuple):
    """Times are monotonic."""

    is_asked: bool = False
    ask_at: float = 0.0
    ends_at: float | None = None
    interval: float = FIRST_INTERVAL
    length: float | None = None
    """Seconds from the first answer to the end. If they are few, the steps come closer to the end."""
    due: tuple[tuple[Step, float], ...] = STEPS

    def is_due(self, now: float) -> bool:
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
