"""A call to the agent about a run, on its node0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipexctl.remote.node_call import call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ipexctl.jobs.registry import RunRecord
    from ipexctl.node.common.frames import Frame
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.reply import Reply
    from ipexctl.remote.session import Session


def call_on_node0(
    session: Session,
    record: RunRecord,
    command: str,
    action: str,
    more: Mapping[str, Any],
    *,
    timeout: float | None = None,
    on_frame: Callable[[Frame], None] | None = None,
    cancel: Cancel | None = None,
) -> Reply:
    return call(
        session,
        command,
        action,
        {"home": record.home, "id": record.id, **more},
        python=record.python,
        home=record.home,
        label=f"{action} the run",
        timeout=timeout,
        on_frame=on_frame,
        cancel=cancel,
    )
