"""The steps of each command about known runs: ps, logs, wait, stop, dump, why.

If node0 is gone, they answer from the local copy and report that. Only `stop` and `prune` change
anything on a host. A failure is a `CallError` that names node0.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ipexctl.api.hosts import open_sessions
from ipexctl.errors import CallError
from ipexctl.limits import PS_ANSWER, STOP_ANSWER, WHY_ANSWER
from ipexctl.node.common.records import FINAL
from ipexctl.option_defaults import RECONNECT_SECONDS
from ipexctl.remote.connector import Connector
from ipexctl.remote.outcome import Cancelled, HostError, Unreachable
from ipexctl.remote.progress import Notice, ignore_event
from ipexctl.run.node0 import options_of
from ipexctl.run.registry import RunRegistry, abandoned_runs, read_failed_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.node.common.records import RunStatus
    from ipexctl.node.run.replies import PrunedRun
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.connector import OnStep
    from ipexctl.remote.session import Session
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.run.dump import Dump
    from ipexctl.run.follow import LineChoice, OnRunUpdate, RunEnded
    from ipexctl.run.ps import KnownRun
    from ipexctl.run.registry import DamagedRecord, RunRecord
    from ipexctl.run.retention import PruneResult
    from ipexctl.run.stop import StopResult
    from ipexctl.run.wait import WaitResult
    from ipexctl.run.why.why import WhyResult

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class CallWatcher:
    cancel: Cancel
    on_note: Callable[[str], None] = ignore_event
    on_warning: Callable[[str], None] = ignore_event
    on_step: OnStep | None = None

    def connector(self, record: RunRecord) -> Connector:
        return Connector(options_of(record, on_step=self.on_step, on_warning=self.on_warning))


@contextmanager
def node0_of(record: RunRecord, caller: CallWatcher) -> Iterator[SessionPool]:
    """Sessions to node0. A HostError in the block becomes a `CallError`."""
    options = options_of(record, on_step=caller.on_step, on_warning=caller.on_warning)
    try:
        with open_sessions(options, caller.cancel) as pool:
            yield pool
    except HostError as error:
        raise call_error(record, error) from None


def call_error(record: RunRecord, error: HostError) -> CallError:
    exit_code = 3 if isinstance(error, Unreachable) else 1
    return CallError(f"{record.node0.name}: {error.reason}", fix=error.advice, exit_code=exit_code)


def begun(record: RunRecord, caller: CallWatcher, *, waits: bool = False) -> RunRecord:
    """The record of a run that has hosts and ranks. With `waits`, wait for a submitted run that has not started or
    waits to restart; otherwise, and if it never started, raise a `CallError` with the reason."""
    if not record.starter.waits or (record.world_size and not waits):
        return record
    from ipexctl.run.follow import run_exit_code
    from ipexctl.run.queue import queue_of
    from ipexctl.run.queue_wait import look, wait_for_start

    state, queue = "queued" if not record.world_size else "", queue_of(record)
    assert queue is not None

    def note_state(known: KnownRun) -> None:
        nonlocal state
        state = known.state

    with node0_of(record, caller) as pool:
        try:
            if record.world_size:
                known = look(pool.session(record.node0), record, pool.cancel)
                if known.has_begun:
                    return known.record
                state = "queued"
            if waits:
                connect = partial(pool.connector.open, record.node0, pool.cancel)
                known = wait_for_start(queue, record, connect, pool.cancel, caller.on_note, note_state)
            else:
                known = look(pool.session(record.node0), record, pool.cancel)
        except Cancelled:
            what = "stays in the queue" if state == "queued" else "has begun, and was not stopped"
            fix = f"ipexctl attach {record.id}, ipexctl stop {record.id}"
            raise CallError(f"run {record.id} {what}", fix=fix) from None
        except HostError:
            if record.world_size:  # the caller may have a local copy to use instead
                return record
            raise
    if known.has_begun:
        return known.record
    assert known.status is not None
    explained = queue.explain(known.record, known.status)
    exit_code = run_exit_code(known.status) if waits else 1
    raise CallError(f"run {record.id}: {explained.reason}", fix=explained.fix, exit_code=exit_code)


def stop(record: RunRecord, caller: CallWatcher, *, timeout: float | None = None) -> StopResult:
    from ipexctl.run.local_copy import save_final_status
    from ipexctl.run.stop import stop

    with node0_of(record, caller) as pool:
        session = pool.session(record.node0)
        result = stop(session, record, timeout=timeout or STOP_ANSWER, cancel=pool.cancel)
    if result.status.state in FINAL:
        save_final_status(RunRegistry().directory / record.id, result.status)
    return result


def dump(
    record: RunRecord, caller: CallWatcher, ranks: Sequence[int] | None = None, *, timeout: float | None = None
) -> Dump | RunStatus:
    """The Python stacks of these ranks; the status if the run is not alive."""
    from ipexctl.run.dump import dump

    with node0_of(record, caller) as pool:
        session = pool.session(record.node0)
        return dump(session, record, ranks, pool.cancel, timeout=timeout or STOP_ANSWER)


def why(record: RunRecord, caller: CallWatcher, *, timeout: float | None = None, is_last: bool = False) -> WhyResult:
    """`is_last`: it was named as the last run, so mention a later call that started none."""
    from ipexctl.run.why.why import mention_failed_call, mention_page, why

    directory = RunRegistry().directory
    with node0_of(record, caller) as pool:
        connect = partial(pool.connector.open, record.node0, pool.cancel)
        result = why(record, connect, directory, pool.cancel, timeout=timeout or WHY_ANSWER)
    if is_last:
        result = mention_failed_call(result, read_failed_call(directory))
    return mention_page(result)


def wait(
    records: Sequence[RunRecord],
    caller: CallWatcher,
    *,
    timeout: float | None = None,
    on_result: Callable[[WaitResult], object] = ignore_event,
) -> list[WaitResult]:
    """Wait until these runs are over, without touching them. `on_result` gets each result as it comes."""
    from ipexctl.run.wait import wait_for_runs

    results: dict[str, WaitResult] = {}
    with ExitStack() as at_end:
        if timeout is not None:
            timer = threading.Timer(timeout, caller.cancel.throw)
            timer.daemon = True
            timer.start()
            at_end.callback(timer.cancel)
        # One per run, however often it reconnects: a login at a bastion is held until the call ends.
        connectors = {record.id: at_end.enter_context(caller.connector(record)) for record in records}

        def open_session(record: RunRecord, cancel: Cancel) -> Session:
            return connectors[record.id].open(record.node0, cancel)

        directory = RunRegistry().directory
        for result in wait_for_runs(records, directory, open_session, caller.cancel, caller.on_note):
            results[result.record.id] = result
            on_result(result)
    return [results[record.id] for record in records if record.id in results]


@dataclass(frozen=True, slots=True)
class LogsResult:
    exit_code: int
    """With `follow`, the run's exit code."""
    status: RunStatus | None
    reason: str = ""
    error: CallError | None = None
    """The error to show; None if a notice already said it."""
    missing: str = ""
    """What node0's record lacks because its disk was full."""


def logs(
    record: RunRecord,
    caller: CallWatcher,
    lines: LineChoice,
    watch: OnRunUpdate,
    *,
    follow: bool = False,
    reconnect: float = RECONNECT_SECONDS,
) -> LogsResult:
    """Pass the chosen lines to `watch` as they come, from node0; from the local copy if node0 sent nothing."""
    from ipexctl.run.follow import Follower

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
    """Pass on the local copy; the exit code is not 0 if it is incomplete."""
    from ipexctl.run.follow import follow_copy
    from ipexctl.run.local_copy import read_copy

    runs = RunRegistry().directory
    copy = read_copy(runs / record.id)
    if copy is None:
        return error.exit_code, error
    last_seen = time.strftime("%Y-%m-%d %H:%M", time.localtime(copy.seen))
    extent = "" if copy.is_complete else f", as far as the run was followed: until {last_seen}"
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
    if status is None or (lost := status.output_lost) is None:
        return ""
    copy = RunRegistry().directory / record.id / "ranks"
    where = f"; what this machine has received of it is in {copy}" if copy.is_dir() else ""
    return f"{lost.bytes:,} bytes are not in the record of {lost.host}, whose disk was full{where}"


def follow_copy_instead(
    record: RunRecord, error: HostError, status: RunStatus | None, watch: OnRunUpdate, cancel: Cancel
) -> RunEnded:
    """Pass on the copy of an ended run if node0 is unreachable or pruned it. `status`: the last one from node0.

    Raises the error if there is no complete copy, or if output came from node0.
    """
    from ipexctl.run.follow import follow_copy
    from ipexctl.run.local_copy import read_copy

    runs = RunRegistry().directory
    copy = read_copy(runs / record.id)
    if status is not None or copy is None or not copy.is_complete:
        raise error
    watch(Notice(f"{record.node0.name}: {error.reason}; this is the copy on this machine", True))
    return follow_copy(record, runs, watch, cancel)


def follow(
    record: RunRecord, caller: CallWatcher, watch: OnRunUpdate, *, reconnect: float = RECONNECT_SECONDS
) -> RunEnded:
    """Pass on what happens until the run is over, and keep a local copy. Raises Cancelled."""
    from ipexctl.run.follow import Follower
    from ipexctl.run.local_copy import LocalCopy

    copy = LocalCopy(RunRegistry().directory / record.id)
    with caller.connector(record) as connector:
        connect = partial(connector.open, record.node0)
        follower = Follower(record, connect, watch, caller.cancel, copy=copy, reconnect=reconnect)
        try:
            return follower.follow()
        except Cancelled:
            raise
        except HostError as error:
            try:
                return follow_copy_instead(record, error, follower.status, watch, caller.cancel)
            except HostError as same:
                raise call_error(record, same) from None


@dataclass(frozen=True, slots=True)
class RunList:
    runs: list[KnownRun]
    hidden: int
    damaged: list[DamagedRecord]


def ps(
    caller: CallWatcher, *, running: bool = False, newest: int | None = None, timeout: float | None = None
) -> RunList:
    """List the known runs: all, those that have not ended, or the newest. Removes runs from the registry that node0
    forgot long ago."""
    from ipexctl.run.ps import forgettable, with_copies
    from ipexctl.run.retention import read_limits

    keep, registry = read_limits(os.environ), RunRegistry()
    records, damaged, runs = _query(registry, caller, None if running else newest, timeout)
    known = {record.id: record for record in records}
    for placed in [
        run.record for run in runs if run.record != known[run.record.id]
    ]:  # submitted runs that have started
        registry.save(placed)
    runs = with_copies(runs, registry.directory)
    if running:
        runs = [run for run in runs if run.state in ("queued", "starting", "running", "unknown")]
    hidden = len(records) - len(runs)
    runs = runs[-newest:] if newest is not None else runs
    for run in forgettable(runs, keep.days, time.time()):
        registry.remove(run)
    return RunList(runs, hidden, damaged)


def _query(
    registry: RunRegistry, caller: CallWatcher, newest: int | None, timeout: float | None
) -> tuple[list[RunRecord], list[DamagedRecord], list[KnownRun]]:
    from ipexctl.run.ps import query_runs

    abandoned_runs(registry.directory)
    records, damaged = registry.read_records()
    if newest is not None:  # don't query the others
        records, damaged = records[-newest:], []
    with _sessions(caller) as open_session:
        return records, damaged, query_runs(records, open_session, caller.cancel, timeout=timeout or PS_ANSWER)


@contextmanager
def _sessions(caller: CallWatcher) -> Iterator[Callable[..., Session]]:
    with ExitStack() as connectors:

        def open_session(record: RunRecord, host: Host | None = None) -> Session:
            return connectors.enter_context(caller.connector(record)).open(host or record.node0, caller.cancel)

        yield open_session


def prune(
    caller: CallWatcher, *, dry_run: bool = False, timeout: float | None = None
) -> tuple[list[PruneResult], list[PrunedRun]]:
    """Remove runs beyond the limits from the nodes and from this machine."""
    from ipexctl.run.retention import prune_local, prune_nodes, read_limits

    keep, registry = read_limits(os.environ), RunRegistry()
    _, _, runs = _query(registry, caller, None, timeout)
    with _sessions(caller) as open_session:
        nodes = prune_nodes([run.record for run in runs], keep, open_session, caller.cancel, dry_run=dry_run)
    over = {run.record.id for run in runs if run.state in FINAL or run.is_gone}
    return nodes, prune_local(registry, keep, over=over, dry_run=dry_run)
