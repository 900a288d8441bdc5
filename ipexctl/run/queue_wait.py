"""Finds the state of a submitted run, and waits until it begins, in any queue. Once it has begun, its record with hosts
and ranks is saved in the registry, so later calls need not ask.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Final

from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import Session
from ipexctl.run.ps import KnownRun, query_session
from ipexctl.run.queue import Queue

INTERVALS: Final = (0.5, 1.0, 1.0, 2.0, 2.0, 5.0)
"""Seconds between two questions. Jobs wait for hours, and a scheduler serves many users."""


def poll_status(session: Session, record: RunRecord) -> KnownRun:
    """The current state; raises a HostError if the login node has no trace of the run."""
    known = query_session(session, [record])[record.id]
    if known.status is None:
        raise HostError(known.reason, known.fix)
    if known.record != record:
        RunRegistry().save(known.record)
    return known


def wait_for_start(
    queue: Queue,
    record: RunRecord,
    open_session: Callable[[], Session],
    cancel: Cancel,
    on_reason: Callable[[str], None],
    on_known: Callable[[KnownRun], None] = lambda _: None,
) -> KnownRun:
    latest, count = "", 0
    with closing(open_session()) as session:
        while True:
            known = poll_status(session, record)
            record = known.record
            on_known(known)
            if known.has_begun or known.state not in ("queued", "starting", "unknown"):
                return known
            assert known.status is not None
            reason = queue.explain(record, known.status).reason
            if reason != latest:
                latest = reason
                on_reason(f"run {record.id}: {reason}")
            cancel.sleep(INTERVALS[min(count, len(INTERVALS) - 1)])
            count += 1
