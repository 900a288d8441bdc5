"""Makes the outcome of a run as JSON for programs: for --summary, the event `end` and the command of --notify. Pure."""

from __future__ import annotations

from typing import Any

from ipexctl.node.common.records import RunStatus
from ipexctl.node.run import summary
from ipexctl.run.registry import RunRecord


def summary_fields(
    record: RunRecord | None, status: RunStatus | None, exit_code: int, seconds: float
) -> dict[str, Any]:
    """The outcome. Id and state are null if no run was started."""
    return summary.summary_fields(
        record.id if record is not None else None,
        status,
        world_size=record.plan.world_size if record is not None else 0,
        hosts=record.hosts if record is not None else (),
        exit_code=exit_code,
        seconds=seconds,
    )
