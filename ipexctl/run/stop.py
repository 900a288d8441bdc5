"""Stop a run: ask its supervisor on node0, and wait until the run has ended."""

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
    """The state of a run after the request to stop it."""

    status: RunStatus
    """The status after the wait. The run may still be alive then."""
    was: State
    """The state before the request."""


def stop(
    session: Session,
    record: RunRecord,
    *,
    number: int = signal.SIGTERM,
    wait: float = STOP_WAIT,
) -> StopResult:
    """Signal the supervisor, and wait until the run has ended or `wait` seconds have passed. Raises a HostError.

    `number`: the signal.
    """
    caller = identify_caller(os.environ)
    sender = caller and caller._asdict()
    request: StopRequest = {"home": record.home, "id": record.id, "wait": wait, "signal": number, "by": sender}
    reply = call_on_node0(session, record, "run.runs", "stop", request)
    return StopResult(read_status(reply["status"]), read_status({"state": reply["was"]}).state)
