"""Call the agent about a run: on the run's node0, or on this machine about the local copy.

The caller owns the session to node0; `api/known_runs.py` opens it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.host import Host
from ipexctl.limits import PATIENCE
from ipexctl.node.common.files import RunReference
from ipexctl.node.common.frames import Frame
from ipexctl.node.run.runs import ListRequest
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, OnStep
from ipexctl.remote.local import LocalSession
from ipexctl.remote.node_call import call, ignore_reply
from ipexctl.remote.reply import OnEvent, Reply
from ipexctl.remote.session import Session


def options_of(
    record: RunRecord, *, on_step: OnStep | None = None, on_warning: Callable[[str], None] | None = None
) -> ConnectOptions:
    """Return how to connect to the hosts of a run, as when it was started.

    A run in a job of a scheduler is reached through that job.
    """
    policy: Any = record.host_keys
    options = ConnectOptions(record.connect_timeout, policy, on_step, on_warning, record.transport)
    return options._replace(job=record.plan.job, shared=record.rundir) if record.plan.job else options


def call_on_node0(
    session: Session,
    record: RunRecord,
    command: str,
    action: str,
    request: RunReference | ListRequest,
    *,
    timeout: float | None = None,
    on_event: OnEvent = ignore_reply,
    on_frame: Callable[[Frame], None] | None = None,
) -> Reply:
    """Call the copy of the agent that the run has on its node0, and return the answer. Raises a HostError.

    `timeout`: seconds for the whole call; None for that of the session.
    """
    return call(
        session,
        command,
        action,
        request,
        record.agent,
        label=f"{action} the run",
        timeout=timeout or session.timeout,
        silence=PATIENCE,
        on_event=on_event,
        on_frame=on_frame,
    )


def open_copy(record: RunRecord, runs: Path, cancel: Cancel) -> tuple[RunRecord, LocalSession]:
    """Return a record and a session for calls about the local copy, which are answered as node0 would.

    `runs`: the registry's directory.
    """
    session = LocalSession(Host(name="localhost", address="localhost"), cancel)  # it holds nothing open
    return replace(record, home=str(runs.parent), python=sys.executable), session
