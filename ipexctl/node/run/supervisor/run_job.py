"""Asks Slurm in the background about a run's job. `supervisor_machine.py` decides when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.node.common import slurm
from ipexctl.node.run.decisions.supervisor_state import JobState, TimeLeft

if TYPE_CHECKING:
    import subprocess

ANSWER = 10.0


def is_in_job() -> bool:
    return bool(slurm.own_job())


class RunJob:
    def __init__(self) -> None:
        self.state = JobState(slurm.own_job(), slurm.own_restarts())
        self._job_query: subprocess.Popen[bytes] | None = None
        self._time_query: subprocess.Popen[bytes] | None = None
        self._asked_at: float | None = None

    def begin_query(self) -> None:
        if self._job_query is None and self.state.number:
            self._job_query = slurm.begin_query(slurm.show_job(self.state.number))

    def shown(self) -> str:
        """Slurm's answer to `begin_query`; empty if there was no query or no answer."""
        query, self._job_query = self._job_query, None
        return "" if query is None else slurm.read_answer(query)

    def ask_time_left(self, now: float) -> None:
        self._time_query, self._asked_at = slurm.begin_query(slurm.show_time_left(self.state.number)), now

    def time_left(self, now: float) -> TimeLeft | None:
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
        if self._time_query is not None:
            slurm.end_query(self._time_query)
