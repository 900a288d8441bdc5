"""What commands ask about a submitted run. Callers use `queue_of` and know no scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from ipexctl.homes.registry import RunRecord
from ipexctl.node.common.records import RunStatus
from ipexctl.remote.reply import Reply
from ipexctl.transports import Transport

if TYPE_CHECKING:  # ps asks a queue and explains nothing: 25 ms
    from ipexctl.run.why.diagnosis import Diagnosis


@dataclass(frozen=True, slots=True)
class QueueExplanation:
    reason: str
    fix: str = ""


class Queue(Transport, Protocol):
    def placed(self, record: RunRecord, status: RunStatus, document: Reply) -> tuple[RunRecord, RunStatus]:
        """The run by its login node's answer: with hosts and ranks, or with the reason why it waits."""

    def explain(self, record: RunRecord, status: RunStatus) -> QueueExplanation:
        """The state of a run that has no record of its own yet."""

    def diagnosis_of(self, record: RunRecord, status: RunStatus) -> Diagnosis:
        """Diagnosis for `why`, of a run that has no record of its own yet."""

    def with_end_of_job(self, diagnosis: Diagnosis, status: RunStatus, *, had_notice: bool) -> Diagnosis:
        """Add what the scheduler did to a run that had begun. `had_notice`: its ranks knew that the job ends."""


def queue_of(record: RunRecord) -> Queue | None:
    """None if the run was not submitted."""
    transport = record.transport
    return cast("Queue", transport) if transport.waits else None
