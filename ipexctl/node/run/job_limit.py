"""Knows when Slurm ends the job of a run, and when its ranks are told and the run is stopped before that. Pure.

In come the time and Slurm's answers; out go the steps that are due: `notice`, then `stop`. Slurm is asked when the run
begins, every ten minutes, and again when a step would be due: a limit can be changed while the job runs. If Slurm does
not answer then, its last answer counts. A job without a limit has no steps.

The rule: a script hears of the limit before it comes. `notice` comes a minute before the end, in which a rank can
write a checkpoint, `stop` a quarter of a minute before, in which ranks end and their output is kept.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ipexctl.node.common.limits import JOB_NOTICE, JOB_STOP

ASK_INTERVAL = 600.0
FIRST_INTERVAL = 30.0
"""After a first question without an answer; then twice as long each time. A limit that is not known has no steps."""
Step = Literal["notice", "stop"]
STEPS: tuple[tuple[Step, float], ...] = (("notice", JOB_NOTICE), ("stop", JOB_STOP))


class JobLimit(NamedTuple):
    """What is known of the time limit of one job."""

    is_asked: bool = False
    """An answer of Slurm is open."""
    ask_at: float = 0.0
    ends_at: float | None = None
    interval: float = FIRST_INTERVAL
    length: float | None = None
    """Seconds from the first answer to the end: a short limit has its steps later."""
    due: tuple[tuple[Step, float], ...] = STEPS

    def is_due(self, now: float) -> bool:
        """Whether to ask Slurm."""
        return not self.is_asked and now >= self.ask_at

    def with_answer(self, asked_at: float, seconds: int | None) -> JobLimit:
        """The limit as Slurm has answered; None: there is none."""
        return self._replace(
            interval=ASK_INTERVAL,
            ends_at=None if seconds is None else asked_at + seconds,
            length=float(seconds) if self.length is None and seconds is not None else self.length,
        )

    def steps(self, now: float) -> tuple[tuple[Step, ...], JobLimit]:
        """The steps that are due after a question, and the limit without them."""
        count = 0
        while self.ends_at is not None and count < len(self.due) and now >= self._at(self.due[count][1]):
            count += 1
        left, ask_at = self.due[count:], now + self.interval
        if self.ends_at is not None and left:
            ask_at = min(ask_at, self._at(left[0][1]))
        interval = min(2 * self.interval, ASK_INTERVAL)
        return tuple(step for step, _ in self.due[:count]), self._replace(due=left, ask_at=ask_at, interval=interval)

    def left(self, now: float) -> float:
        """Seconds until Slurm ends the job, as far as is known."""
        return max(0.0, self.ends_at - now) if self.ends_at is not None else 0.0

    def _at(self, seconds: float) -> float:
        """When a step is due that is so long before the end: of a short limit, a part."""
        return (self.ends_at or 0.0) - min(seconds, (self.length or 0.0) * seconds / (4 * JOB_NOTICE))
