"""Decides what a job of Slurm means for the end of a run in it: whether that stopped the run, and whether it goes on.

In come the end that the supervisor has found, as a `RunEnd`, and what Slurm shows of the job; out goes a `JobVerdict`,
which the record gets. All of it is pure; `run_job.py` asks Slurm and puts the job into the queue again.

A run that was submitted with --requeue ends as `queued` if its job begins again: after preemption, at the time limit,
and if a node does not answer. Slurm notices such a node minutes later, when this job would be over, so the supervisor
asks for the next start itself. The rules: a stop by a user is final, and so is a hang; nodes that are lost again and
again are no reason for a further start; and Slurm's signals come in any order and to any process, so that a failure by
a signal is Slurm's doing if Slurm says that it ends the job.

A run with --min-hosts has a job that Slurm does not end with a node. Should that node be node0, nothing of the run or
of its job's script is left to end it: the ranks on other nodes do (`orphan_state`).
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Literal, NamedTuple

from ipexctl.node.common import job_words, slurm

if TYPE_CHECKING:
    from ipexctl.node.common.records import Attempt, Failure, State

STOPPED = 128 + signal.SIGTERM
MOST_LOSSES = 3
"""Attempts in a row that lost a node, after which the run has failed."""
_LOST_NODE = ("silent", "cut-off")
"""The details of a node that does not answer."""


_STEP_CANCELLED = re.compile(r"^slurmstepd\S*: error: \*\*\* STEP [0-9.]+ ON \S+ CANCELLED AT ", re.MULTILINE)
_TASK_EXITED = re.compile(r"^srun: error: \S+: tasks? \S+: Exited ", re.MULTILINE)


def is_step_cancelled(log: str) -> bool:
    """Whether srun prints that its step was cancelled, which kills all tasks at once: no task has exited by itself.

    srun prints the same line if it is ended itself, after it has waited for tasks. Slurm can't be asked: it forgets a
    step that is over. Pure.
    """
    return _STEP_CANCELLED.search(log) is not None and _TASK_EXITED.search(log) is None


class RunEnd(NamedTuple):
    """How an attempt has ended, by what its supervisor knows."""

    state: State
    code: int
    reason: str
    first: Failure | None
    attempts: tuple[Attempt, ...] = ()
    """The earlier ones."""
    is_limit_near: bool = False
    """The ranks have got the notice that the job is about to end."""
    has_noticed: bool = False
    """One of them has handled it."""
    is_asked_to_stop: bool = False
    """By a signal to the supervisor: of a user, or of Slurm."""
    is_silent: bool = False
    """No rank had printed anything for so long that it counts as a hang."""

    @property
    def is_by_signal(self) -> bool:
        first = self.first
        return first is not None and (
            first.signal == signal.SIGTERM or first.kind == "mpirun" or _detail_of(first) == "wrapper-killed"
        )

    @property
    def is_by_limit(self) -> bool:
        """Whether it was stopped, or its ranks ended themselves, since the end of the job is near."""
        is_ended = self.state == "stopped" or (self.state == "ok" and self.has_noticed)
        return self.is_limit_near and is_ended and not self.is_asked_to_stop

    @property
    def has_lost_node(self) -> bool:
        return self.state == "failed" and _detail_of(self.first) in _LOST_NODE and not self.is_asked_to_stop


class JobVerdict(NamedTuple):
    """The end of an attempt, with what Slurm did."""

    state: State
    code: int
    reason: str
    first: Failure | None
    word: str
    """One that `job_words.describe_run_end` knows; empty if Slurm has done nothing."""


def _detail_of(failure: Failure | None) -> str:
    return failure.detail.kind if failure is not None and failure.detail is not None else ""


def find_word(end: RunEnd, shown: str, restarts: int, *, is_step_cancelled: bool) -> str:
    """What Slurm did to the run. `shown`: the job, as `show_job` prints it; empty if it was not asked. Pure."""
    if end.is_by_limit:
        return job_words.LIMIT_NEAR
    word = slurm.job_end_in(shown, restarts)
    return word or (job_words.STEP_CANCELLED if end.is_by_signal and is_step_cancelled else "")


def should_requeue(end: RunEnd, word: str) -> bool:
    """Whether a run that may begin again asks for that itself. Pure."""
    if end.is_silent:
        return False
    if word:
        return word == job_words.LIMIT_NEAR
    return end.has_lost_node and _losses(end.attempts) < MOST_LOSSES - 1


def _losses(attempts: tuple[Attempt, ...]) -> int:
    """How many of the last attempts in a row have lost a node."""
    count = 0
    for attempt in reversed(attempts):
        if _detail_of(attempt.first_failure) not in _LOST_NODE:
            break
        count += 1
    return count


def orphan_state(shown: str, restarts: int, membership: str | None) -> Literal["waits", "orphaned", "over"]:
    """What has become of a job that Slurm does not end with a node, for a rank that has lost its supervisor. Pure.

    `shown`: as `show_job` prints it, empty without an answer; `membership`: as `show_own_node` prints it of the node of
    its script, None without an answer. Slurm takes a node that is down out of such a job, and leaves the others to it:
    without the node of its script nothing ends it before its time limit. Until then, only this rank may be cut off.
    """
    job = slurm.read_job(shown)
    if job is None or (job.is_active and membership is None):
        return "waits"
    if not job.is_active or slurm.job_end_in(shown, restarts):
        return "over"
    return "waits" if membership else "orphaned"


def judge(end: RunEnd, word: str, *, begins_again: bool) -> JobVerdict:
    """`begins_again`: whether the job has another start. Pure."""
    verdict = JobVerdict(end.state, end.code, end.reason, end.first, word)
    if word and end.is_by_signal:
        verdict = verdict._replace(state="stopped", code=STOPPED, reason="it was stopped", first=None)
    if begins_again:
        # The next start of the job goes on with this record; until then the run waits.
        why = f"{end.reason}; " if end.has_lost_node else ""
        reason = why + job_words.describe_run_end(job_words.REQUEUED)
        verdict = verdict._replace(state="queued", reason=reason, word=job_words.REQUEUED)
    return verdict
