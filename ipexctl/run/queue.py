"""A submitted run, for the commands that meet one: what they ask of a queue, the starter that waits.

A queue knows its scheduler: why a run waits, where it is once it has begun, how its job ended, in sentences with what
to type. Callers ask `queue_of` and know no scheduler, so that another queue is just another starter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from ipexctl.node.common.records import RunStatus
from ipexctl.remote.reply import Reply
from ipexctl.run.registry import RunRecord
from ipexctl.starters import Starter

if TYPE_CHECKING:  # ps asks a queue and explains nothing: 25 ms
    from ipexctl.run.why.diagnosis import Diagnosis


@dataclass(frozen=True, slots=True)
class Explained:
    reason: str
    fix: str = ""


class Queue(Starter, Protocol):
    def placed(self, record: RunRecord, status: RunStatus, document: Reply) -> tuple[RunRecord, RunStatus]:
        """The run by its login node's answer: with its place, or with the reason why it waits."""

    def explain(self, record: RunRecord, status: RunStatus) -> Explained:
        """The state of a run that has no record of its own yet."""

    def diagnosis_of(self, record: RunRecord, status: RunStatus) -> Diagnosis:
        """For `why`, of a run that has no record of its own yet."""

    def with_end_of_job(self, diagnosis: Diagnosis, status: RunStatus, *, had_notice: bool) -> Diagnosis:
        """The diagnosis of a run that had begun, with what the scheduler did to it. `had_notice`: its ranks were
        notified that the job is about to end."""


def queue_of(record: RunRecord) -> Queue | None:
    """None if the run was not submitted."""
    starter = record.starter
    return cast("Queue", starter) if starter.waits else None
