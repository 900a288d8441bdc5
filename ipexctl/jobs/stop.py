"""Stopping a run on node0, and clearing what only a run under way needs from the other nodes."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ipexctl.jobs.events import read_status
from ipexctl.remote.node_call import call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.jobs.events import RunStatus, State
    from ipexctl.jobs.registry import RunRecord
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.reply import Reply
    from ipexctl.remote.session import Session

WAIT: Final = 20.0
"""Seconds for all ranks to be gone: the grace between TERM and KILL is four."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """What the run is now, and was when we came."""

    status: RunStatus
    was: State

    @property
    def is_over(self) -> bool:
        return self.status.state not in ("starting", "running")


def stop(
    session: Session,
    record: RunRecord,
    *,
    number: int = signal.SIGTERM,
    wait: float = WAIT,
    cancel: Cancel | None = None,
) -> Stopped:
    """Tell the supervisor to end the run, by pid and start time, and wait until it has. Raises a HostError."""
    answer = run_on_node0(session, record, "stop", {"wait": wait, "signal": number}, cancel)
    was = read_status({"state": answer["was"]}).state
    return Stopped(read_status(answer["status"]), was)


def clear(session: Session, record: RunRecord, *, cancel: Cancel | None = None) -> None:
    """Take the job file with its token and secrets off a node, if it is still there."""
    run_on_node0(session, record, "clear", {}, cancel)


def run_on_node0(
    session: Session, record: RunRecord, action: str, more: Mapping[str, Any], cancel: Cancel | None
) -> Reply:
    request = {"home": record.home, "id": record.id, **more}
    label = f"{action} the run"
    return call(
        session, "run.runs", action, request, python=record.python, label=label, timeout=WAIT * 3, cancel=cancel
    )
