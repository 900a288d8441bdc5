"""Knows when Slurm ends the job of a run, and when its ranks are told and the run is stopped before that.

In come the time and the number of the job; out go the steps that are due: `notice`, then `stop`. Slurm is asked in the
background when the run begins, every ten minutes, and again when a step would be due: a limit can be changed while the
job runs. If Slurm does not answer then, its last answer counts. A job without a limit has no steps.

The rule: a script hears of the limit before it comes. `notice` comes a minute before the end, in which a rank can
write a checkpoint, `stop` a quarter of a minute before, in which ranks end and their output is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Iterator, Literal

from ipexctl.node.common.limits import JOB_NOTICE, JOB_STOP
from ipexctl.node.common.slurm import begin_query, end_query, read_answer, seconds_left, show_time_left

if TYPE_CHECKING:
    import subprocess

ASK_INTERVAL = 600.0
FIRST_INTERVAL = 30.0
"""After a first question without an answer; then twice as long each time. A limit that is not known has no steps."""
ANSWER = 10.0
"""Seconds for an answer, while the run goes on."""
Step = Literal["notice", "stop"]
STEPS: tuple[tuple[Step, float], ...] = (("notice", JOB_NOTICE), ("stop", JOB_STOP))


class JobLimit:
    """The time limit of one job."""

    def __init__(self, job: str, ask: Callable[[], subprocess.Popen[bytes] | None] | None = None) -> None:
        """`ask` begins to ask Slurm for the time that is left."""
        self.job = job
        self._ask = ask or (lambda: begin_query(show_time_left(job)))
        self._query: subprocess.Popen[bytes] | None = None
        self._asked_at = 0.0
        self._ask_at = 0.0
        self._ends_at: float | None = None
        self._interval = FIRST_INTERVAL
        self._length: float | None = None
        """Seconds from the first answer to the end: a short limit has its steps later."""
        self._due = list(STEPS)

    def check(self, now: float) -> Iterator[Step]:
        """The steps that are due now."""
        if self._query is not None:
            is_late = now - self._asked_at > ANSWER
            if self._query.poll() is None and not is_late:
                return
            self._read()
        elif now >= self._ask_at:
            self._query, self._asked_at = self._ask(), now
            if self._query is not None:
                return
        else:
            return
        while self._ends_at is not None and self._due and now >= self._ends_at - self._before(self._due[0][1]):
            yield self._due.pop(0)[0]
        self._ask_at = now + self._interval
        self._interval = min(2 * self._interval, ASK_INTERVAL)
        if self._ends_at is not None and self._due:
            self._ask_at = min(self._ask_at, self._ends_at - self._before(self._due[0][1]))

    def left(self, now: float) -> float:
        """Seconds until Slurm ends the job, as far as is known."""
        return max(0.0, self._ends_at - now) if self._ends_at is not None else 0.0

    def close(self) -> None:
        """Ask no more."""
        if self._query is not None:
            end_query(self._query)

    def _read(self) -> None:
        """Read the answer, and end a command without one."""
        query, self._query = self._query, None
        assert query is not None
        if query.poll() is None:
            end_query(query)
            return
        answer = read_answer(query)
        if query.returncode == 0:
            left = seconds_left(answer)
            self._interval = ASK_INTERVAL
            self._ends_at = None if left is None else self._asked_at + left
            if self._length is None and left is not None:
                self._length = float(left)

    def _before(self, seconds: float) -> float:
        """Seconds before the end for a step: of a short limit, a part."""
        return min(seconds, (self._length or 0.0) * seconds / (4 * JOB_NOTICE))
