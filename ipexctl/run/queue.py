"""A submitted run, for the commands that meet one: what they ask of a queue, the starter that waits.

In comes the record of a run; out goes its `Queue`, or None for a run that began with its call. The queue knows its
scheduler: why a run waits, where it is once it has begun, how its job ended, in sentences with what to type. The rule:
a caller asks `queue_of` and knows no scheduler, so that another queue is another starter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from ipexctl.starters.starter import Starter

if TYPE_CHECKING:
    from ipexctl.node.common.records import RunStatus
    from ipexctl.remote.reply import Reply
    from ipexctl.run.registry import RunRecord
    from ipexctl.run.why.diagnosis import Diagnosis


@dataclass(frozen=True, slots=True)
class Explained:
    """A sentence, and what to type."""

    reason: str
    fix: str = ""


class Queue(Starter, Protocol):
    """The starter of submitted runs."""

    def placed(self, record: RunRecord, status: RunStatus, document: Reply) -> tuple[RunRecord, RunStatus]:
        """The run by the answer of its login node: with the place that it has got, or with the reason of its wait."""

    def explain(self, record: RunRecord, status: RunStatus) -> Explained:
        """Why a run without a record of its own is as it is."""

    def diagnosis_of(self, record: RunRecord, status: RunStatus) -> Diagnosis:
        """For `why`, of a run without a record of its own."""

    def with_end_of_job(self, diagnosis: Diagnosis, status: RunStatus, *, had_notice: bool) -> Diagnosis:
        """The diagnosis of a run that had begun, with what the scheduler did to it. `had_notice`: its ranks had been
        told that the job is about to end."""


def queue_of(record: RunRecord) -> Queue | None:
    """The queue to which the run was submitted; None if it was not."""
    starter = record.starter
    return cast("Queue", starter) if starter.waits else None
