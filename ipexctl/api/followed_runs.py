"""The steps of logs, attach and wait. If node0 does not answer, logs and attach use the local copy, and say so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from ipexctl.api.known_runs import CallWatcher, call_error
from ipexctl.errors import CallError
from ipexctl.homes.local_copy import LocalCopy, read_copy
from ipexctl.homes.registry import RunRecord, RunRegistry
from ipexctl.node.common.records import RunStatus
from ipexctl.option_declaration import RECONNECT_SECONDS
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.outcome import Cancelled, HostError, Notice, ignore_event
from ipexctl.remote.session import Session
from ipexctl.run.follow_run import Follower, LineChoice, OnRunUpdate, RunEnded, follow_copy
from ipexctl.run.ps import KnownRun
from ipexctl.run.wait import wait_for_runs


@dataclass(frozen=True, slots=True)
class LogsResult:
    """How a call of `logs` ended."""

    exit_code: int
    """With `follow`, the exit code of the run; else 0. Not 0 either way if output may be missing."""
    status: RunStatus | None
    """The last status from node0; None if it sent none."""
    reason: str = ""
    """Why lines may be missing; empty if none are."""
    error: CallError | None = None
    """The error to show; None if a notice already said it."""
    missing: str = ""
    """What node0's record lacks because its disk was full; empty if it is complete."""


def logs(
    record: RunRecord,
    caller: CallWatcher,
    lines: LineChoice,
    watch: OnRunUpdate,
    *,
    follow: bool = False,
    reconnect: float = RECONNECT_SECONDS,
) -> LogsResult:
    """Pass the chosen lines to `watch` as they come from node0; from the local copy if node0 sent nothing.

    `reconnect`: seconds to wait for a node0 that does not answer.
    """
    code, reason, failed = 0, "", None
    with caller.connector(record) as connector:
        connect = partial(connector.open, record.node0)
        follower = Follower(record, connect, watch, caller.cancel, lines=lines, figures=10.0, reconnect=reconnect)
        try:
            ended = follower.follow(to_the_end=follow)
            code = ended.exit_code if follow else 0
        except Cancelled:
            pass
        except HostError as error:
            failed = call_error(record, error)
            code = failed.exit_code
            if follower.status is None:  # else lines would come twice
                code, failed = _from_copy(record, failed, watch, caller.cancel, lines)
            reason = f"{record.node0.name}: {error.reason}" if code else ""
    return LogsResult(code, follower.status, reason, failed, _missing_output(record, follower.status))


def _from_copy(
    record: RunRecord, error: CallError, watch: OnRunUpdate, cancel: Cancel, lines: LineChoice
) -> tuple[int, CallError | None]:
    """Pass on the local copy.

    Returns an exit code, which is not 0 if the copy is incomplete, and the error to show or None.
    """
    runs = RunRegistry().directory
    copy = read_copy(runs / record.id)
    if copy is None:
        return error.exit_code, error
    last_seen = time.strftime("%Y-%m-%d %H:%M", time.localtime(copy.seen))
    extent = "" if copy.is_complete else f", up to {last_seen}, when it was last followed"
    watch(Notice(f"{error.message}; from the copy on this machine{extent}", not copy.is_complete))
    try:
        follow_copy(record, runs, watch, cancel, lines)
    except Cancelled:
        pass
    except HostError as copy_error:
        failed = call_error(record, copy_error)
        return failed.exit_code, failed
    return 0 if copy.is_complete else error.exit_code, None


def _missing_output(record: RunRecord, status: RunStatus | None) -> str:
    """Return what the record lacks because a disk was full; empty if it is complete."""
    if status is None or (lost := status.output_lost) is None:
        return ""
    copy = RunRegistry().directory / record.id / "ranks"
    where = f"; what this machine has received of it is in {copy}" if copy.is_dir() else ""
    return f"{lost.bytes:,} bytes are not in the record of {lost.host}, whose disk was full{where}"


def follow_copy_instead(
    record: RunRecord, error: HostError, status: RunStatus | None, watch: OnRunUpdate, cancel: Cancel
) -> RunEnded:
    """Pass on the local copy of an ended run, if node0 cannot be reached or has pruned it. `status`: the last one from
    node0.

    Raises `error` if there is no complete copy, or if output came from node0.
    """
    runs = RunRegistry().directory
    copy = read_copy(runs / record.id)
    if status is not None or copy is None or not copy.is_complete:
        raise error
    watch(Notice(f"{record.node0.name}: {error.reason}; this is the copy on this machine", True))
    return follow_copy(record, runs, watch, cancel)


def follow(
    record: RunRecord, caller: CallWatcher, watch: OnRunUpdate, *, reconnect: float = RECONNECT_SECONDS
) -> RunEnded:
    """Pass on what happens until the run is over, and keep a local copy.

    Raises Cancelled if the call is cancelled, and a CallError if node0 is lost and there is no complete copy.
    """
    copy = LocalCopy(RunRegistry().directory / record.id) if record.is_kept else None
    with caller.connector(record) as connector:
        connect = partial(connector.open, record.node0)
        follower = Follower(
            record, connect, watch, caller.cancel, copy=copy, reconnect=reconnect, open_host=connector.open
        )
        try:
            return follower.follow()
        except Cancelled:
            raise
        except HostError as error:
            try:
                return follow_copy_instead(record, error, follower.status, watch, caller.cancel)
            except HostError as same:
                raise call_error(record, same) from None


def wait(
    records: Sequence[RunRecord],
    caller: CallWatcher,
    *,
    timeout: float | None = None,
    on_result: Callable[[KnownRun], object] = ignore_event,
) -> list[KnownRun]:
    """Wait until these runs are over, or `timeout` seconds, without touching them.

    `on_result` gets each result as it comes. Returns the results in the order of `records`, without runs of which
    nothing is known.
    """
    results: dict[str, KnownRun] = {}
    with ExitStack() as at_end:
        if timeout is not None:
            timer = threading.Timer(timeout, caller.cancel.throw)
            timer.daemon = True
            timer.start()
            at_end.callback(timer.cancel)
        # One per run, however often it reconnects: a login at a bastion is held until the call ends.
        connectors = {record.id: at_end.enter_context(caller.connector(record)) for record in records}

        def open_session(record: RunRecord, cancel: Cancel) -> Session:
            """Open a session to a run's node0."""
            return connectors[record.id].open(record.node0, cancel)

        directory = RunRegistry().directory
        for result in wait_for_runs(records, directory, open_session, caller.cancel, caller.on_note):
            results[result.record.id] = result
            on_result(result)
    return [results[record.id] for record in records if record.id in results]
