"""Stops a run."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ipexctl.node.common.records import RunStatus, State, read_status
from ipexctl.remote.node_call import call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ipexctl.jobs.registry import RunRecord
    from ipexctl.node.common.frames import Frame
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.reply import Reply
    from ipexctl.remote.session import Session

WAIT: Final = 20.0
"""Seconds for all ranks to exit: there are four between TERM and KILL."""
ANSWER_TIMEOUT: Final = 60.0


@dataclass(frozen=True, slots=True)
class StopResult:
    """The status of a run after it was stopped, and its state before."""

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
    timeout: float = ANSWER_TIMEOUT,
    cancel: Cancel | None = None,
) -> StopResult:
    """Signal the supervisor, and wait until the run has ended. Raises a HostError."""
    answer = run_on_node0(session, record, "stop", {"wait": WAIT, "signal": number}, cancel, timeout)
    was = read_status({"state": answer["was"]}).state
    return StopResult(read_status(answer["status"]), was)


def run_on_node0(
    session: Session,
    record: RunRecord,
    action: str,
    more: Mapping[str, Any],
    cancel: Cancel | None,
    timeout: float = ANSWER_TIMEOUT,
    *,
    on_frame: Callable[[Frame], None] | None = None,
) -> Reply:
    request = {"home": record.home, "id": record.id, **more}
    return call(
        session,
        "run.runs",
        action,
        request,
        python=record.python,
        home=record.home,
        label=f"{action} the run",
        timeout=timeout,
        on_frame=on_frame,
        cancel=cancel,
    )
