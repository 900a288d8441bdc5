"""The outcome of a run for programs: fields of `--summary`, of the event `end`, and of the input for `--notify`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ipexctl.node.common.json_records import as_json
from ipexctl.node.common.records import LeverUse

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.common.plan import Plan
    from ipexctl.node.common.records import RunStatus

SCHEMA = "ipexctl.run/1"


def summary_fields(plan: Plan | None, status: RunStatus | None, exit_code: int, seconds: float) -> Json:
    """`plan`: None if no run was started; `status`: None if the run was not followed to its end."""
    state = "unknown" if status is None else status.state  # as in `ps`
    lost = status.output_lost if status is not None else None
    return {
        "id": plan and plan.id,
        "state": plan and state,
        "exit_code": exit_code,
        "world_size": plan.world_size if plan is not None else 0,
        "hosts": list(plan.names) if plan is not None and plan.hosts else [],
        "seconds": round(seconds, 3),
        "tag": plan and plan.asked.tag,
        "script": plan and plan.script,
        "cause": (status and status.cause) or None,
        "stopped": status and status.stopped and status.stopped._asdict(),
        "checkpoint": {"path": status.checkpoint, "fetch": status.fetch_line} if status and status.checkpoint else None,
        "output_lost": lost and lost._asdict(),
        "throughput": status and status.throughput and status.throughput._asdict(),
        "group": status and status.group and status.group._asdict(),
        "untrained": status and status.untrained and status.untrained._asdict(),
        "nan": status and status.nan and status.nan._asdict(),
        "exchange": status and status.exchange and status.exchange._asdict(),
        "network": status and status.network and as_json(status.network),
        "levers": levers_of(status),
        "wrong": as_json(status.wrong) if status else [],
        "attempts": attempts_of(status),
    }


def levers_of(status: RunStatus | None) -> list[Json]:
    """Options that were asked for, and those that --profile measured; the speedup is null if it was not."""
    if status is None:
        return []
    speedups = {lever.option: lever.speedup for lever in status.levers}
    asked = {use.name: use._asdict() for use in status.acted}
    others = {name: LeverUse(name, acted=False, reason="not asked")._asdict() for name in speedups}
    return [{**row, "option": name, "speedup": speedups.get(name)} for name, row in {**others, **asked}.items()]


def attempts_of(status: RunStatus | None) -> list[Json]:
    return [
        {
            "attempt": attempt.attempt,
            "hosts": list(attempt.hosts),
            "world_size": attempt.world_size,
            "reason": attempt.reason,
            "ended": attempt.ended,
        }
        for attempt in (status.all_attempts if status is not None else ())
    ]


def summary_text(fields: Json) -> str:
    return json.dumps({"schema": SCHEMA, **fields}, indent=2) + "\n"
