"""Stop a run: ask its supervisor on node0, and wait until the run has ended.

A home that is refused, or a record that cannot be read, does not prevent a stop: the supervisor is then found by its
command line.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError
from ipexctl.homes.registry import RunRecord
from ipexctl.limits import STOP_WAIT
from ipexctl.node.common.records import RunStatus, State, read_status
from ipexctl.node.run.runs import StopRequest
from ipexctl.remote.caller import identify_caller
from ipexctl.remote.command import Command
from ipexctl.remote.outcome import HostError, Unreachable
from ipexctl.remote.session import Session, capture
from ipexctl.run.node0 import call_on_node0

_SIGNAL_SUPERVISOR: Final = Path(__file__).with_name("stop_supervisor.sh")


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
    try:
        reply = call_on_node0(session, record, "run.runs", "stop", request)
    except (HostError, UserError) as error:
        words = [record.plan.rundir, f"{int(number)}", f"{wait:.0f}"]
        command = Command.scripts(_SIGNAL_SUPERVISOR, arguments=words, label="stop the supervisor")
        if isinstance(error, Unreachable) or not capture(session, command, timeout=wait + 10).ended.ok:
            raise
        status = RunStatus(record.id, "stopped", exit_code=128 + number, reason=str(error))
        return StopResult(status._replace(world_size=record.plan.world_size, nodes=len(record.hosts)), "running")
    return StopResult(read_status(reply["status"]), read_status({"state": reply["was"]}).state)
