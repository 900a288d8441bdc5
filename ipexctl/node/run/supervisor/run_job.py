"""Asks Slurm in the background about a run's job. `supervisor_machine.py` decides when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.node.common import slurm
from ipexctl.node.run.decisions.supervisor_state import JobState, TimeLeft

if TYPE_CHECKING:
    import subprocess

ANSWER = 10.0


def is_in_job() -> bool:
    """Return True if this process belongs to a Slurm job."""
    return bool(slurm.own_job())


class RunJob:
    def __init__(self) -> None:
        self.state = JobState(slurm.own_job(), slurm.own_restarts())
        self._job_query: subprocess.Popen[bytes] | None = None
        self._time_query: subprocess.Popen[bytes] | None = None
        self._asked_at: float | None = None

    def begin_query(self) -> None:
        """Start to ask Slurm what it shows of the job; `shown` returns the answer. Does nothing outside a job, or if a
        question is open."""
        if self._job_query is None and self.state.number:
            self._job_query = slurm.begin_query(slurm.show_job(self.state.number))

    def shown(self) -> str:
        """Return Slurm's answer to `begin_query`, for which it waits; empty if there was no query or no answer."""
        query, self._job_query = self._job_query, None
        return "" if query is None else slurm.read_answer(query)

    def ask_time_left(self, now: float) -> None:
        """Start to ask Slurm how long the job may still run. `now`: the monotonic clock, as for `time_left`."""
        self._time_query, self._asked_at = slurm.begin_query(slurm.show_time_left(self.state.number)), now

    def time_left(self, now: float) -> TimeLeft | None:
        """Return Slurm's answer once; None while there is none to return. A question that fails, or that is open for
        ANSWER seconds, gives a TimeLeft without an answer."""
        query, asked_at = self._time_query, self._asked_at
        if asked_at is None or (query is not None and query.poll() is None and now - asked_at <= ANSWER):
            return None
        self._time_query = self._asked_at = None
        if query is None or query.returncode is None:
            if query is not None:
                slurm.end_query(query)
            return TimeLeft(asked_at, is_answer=False)
        answer = slurm.read_answer(query)
        if query.returncode:
            return TimeLeft(asked_at, is_answer=False)
        return TimeLeft(asked_at, is_answer=True, seconds=slurm.seconds_left(answer))

    def close(self) -> None:
        """End an open question about the time left."""
        if self._time_query is not None:
            slurm.end_query(self._time_query)
