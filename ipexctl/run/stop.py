"""Stops a run."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from ipexctl.homes.registry import RunRecord
from ipexctl.limits import STOP_WAIT
from ipexctl.node.common.records import RunStatus, State, read_status
from ipexctl.node.run.runs import StopRequest
from ipexctl.remote.caller import identify_caller
from ipexctl.remote.session import Session
from ipexctl.run.node0 import call_on_node0


@dataclass(frozen=True, slots=True)
class StopResult:
    status: RunStatus
    was: State


def stop(
    session: Session,
    record: RunRecord,
    *,
    number: int = signal.SIGTERM,
    wait: float = STOP_WAIT,
) -> StopResult:
    """Signal the supervisor; wait until the run has ended. Raises a HostError."""
    by = identify_caller(os.environ)
    sender = by and by._asdict()
    request: StopRequest = {"home": record.home, "id": record.id, "wait": wait, "signal": number, "by": sender}
    reply = call_on_node0(session, record, "run.runs", "stop", request)
    return StopResult(read_status(reply["status"]), read_status({"state": reply["was"]}).state)
