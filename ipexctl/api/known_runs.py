"""The steps of ps and stop: calls to the node0 of known runs, and a look at hosts (`ps -H`).

Only `stop` and `prune` change anything on a host. A failure is a `CallError` that names node0.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ipexctl.api.open_hosts import open_sessions
from ipexctl.errors import CallError, UserError
from ipexctl.homes.local_copy import read_final_status, save_final_status
from ipexctl.homes.pending import abandoned_runs
from ipexctl.homes.prune_runs import PruneResult, prune_local, prune_nodes, read_limits
from ipexctl.homes.registry import RunRecord, RunRegistry, UnreadableRecord, explain_foreign_run
from ipexctl.hosts.host import Host
from ipexctl.limits import PATIENCE
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.records import FINAL, RunStatus
from ipexctl.node.run.run_replies import PrunedRun
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.connector import ConnectOptions, Connector, OnStep, OpenHosts, SessionPool
from ipexctl.remote.outcome import HostError, HostResult, Report, Unreachable, ignore_event
from ipexctl.remote.session import Session
from ipexctl.run.node0 import options_of
from ipexctl.run.ps import KnownRun, expired_runs, query_runs, query_session, with_copies
from ipexctl.run.stop import StopResult
from ipexctl.run.stop import stop as stop_run

if TYPE_CHECKING:
    from ipexctl.run.hosts_now import HostsNow


def as_recorded(record: RunRecord) -> RunRecord:
    """Return the record as it is."""
    return record


@dataclass(frozen=True, slots=True)
class CallWatcher:
    """What a call about runs needs: how to cancel it, where its messages go, and how to log in."""

    cancel: Cancel
    on_note: Callable[[str], None] = ignore_event
    on_warning: Callable[[str], None] = ignore_event
    on_step: OnStep | None = None
    """Called with each remote step; None to show none."""
    with_login: Callable[[RunRecord], RunRecord] = as_recorded
    """Applies the login settings of the call to a record, in calls about all runs."""
    timeout: float | None = None
    """Seconds for a step on node0; None for the limit of the step itself."""

    def options(self, record: RunRecord) -> ConnectOptions:
        """Return how to connect to the hosts of the run."""
        options = options_of(record, on_step=self.on_step, on_warning=self.on_warning)
        return options._replace(timeout=self.timeout)

    def connector(self, record: RunRecord) -> Connector:
        """Return a connector for the hosts of the run."""
        return Connector(self.options(record))


@contextmanager
def node0_of(record: RunRecord, caller: CallWatcher) -> Iterator[SessionPool]:
    """Open sessions to node0. A HostError in the block becomes a CallError."""
    try:
        with open_sessions(caller.options(record), caller.cancel) as pool:
            yield pool
    except HostError as error:
        raise call_error(record, error) from None


def call_error(record: RunRecord, error: HostError) -> CallError:
    """Return the error for a node0 that failed. The exit code is 3 if it cannot be reached."""
    exit_code = 3 if isinstance(error, Unreachable) else 1
    return CallError(f"{record.node0.name}: {error.reason}", fix=error.advice, exit_code=exit_code)


def stop(record: RunRecord, caller: CallWatcher, *, force: bool = False) -> StopResult:
    """Stop a run. Raises a UserError for a run of others without `force`."""
    if not record.is_own and not force:
        raise UserError(explain_foreign_run(record), fix=record.call_text(Fix(f"`ipexctl stop {record.id} --force`")))
    with node0_of(record, caller) as pool:
        result = stop_run(pool.session(record.node0), record)
    if record.is_kept and result.status.state in FINAL:
        save_final_status(RunRegistry().directory / record.id, result.status)
    return result


def note_end(record: RunRecord, caller: CallWatcher) -> RunStatus | None:
    """Save the status of an ended run that no call followed, if node0 answers.

    Returns the status; None if it is not known.
    """
    directory = RunRegistry().directory / record.id
    status = read_final_status(directory)
    with suppress(CallError):
        if status is None:
            with node0_of(record, replace(caller, timeout=PATIENCE)) as pool:
                status = query_session(pool.session(record.node0), [record])[record.id].status
            if record.is_kept and status is not None and status.is_over:
                save_final_status(directory, status)
    return status


@dataclass(frozen=True, slots=True)
class RunList:
    """Runs, as `ps` lists them."""

    runs: list[KnownRun]
    hidden: int
    """Number of records that are left out because their runs have ended."""
    damaged: list[UnreadableRecord]
    """Records that cannot be read."""


def ps(caller: CallWatcher, *, running: bool = False, newest: int | None = None) -> RunList:
    """Return the runs that this machine started. Also removes those from the registry that node0 forgot long ago.

    `newest`: show only so many; None for all.
    """
    keep, registry = read_limits(os.environ), RunRegistry()
    records, damaged, runs = _query(registry, caller, None if running else newest)
    runs = with_copies(runs, registry.directory)
    if running:
        runs = [run for run in runs if run.state in ("starting", "running", "unknown")]
    hidden = len(records) - len(runs)
    runs = runs[-newest:] if newest is not None else runs
    for run in expired_runs(runs, keep.days, time.time()):
        registry.remove(run)
    return RunList(runs, hidden, damaged)


def ps_hosts(opened: OpenHosts) -> tuple[HostsNow, Report[HostResult]]:
    """Look at what runs on the hosts now, of every account. Returns it with the report of the hosts."""
    from ipexctl.run.hosts_now import hosts_now  # with the planner's sentences, for this call alone
    from ipexctl.run.start.exclusive import inspect_hosts

    began, snapshots, results = time.monotonic(), {}, {}
    for outcome in inspect_hosts(opened.hosts, opened.pool, with_programs=True, timeout=opened.timeout):
        name, seconds = outcome.host.name, time.monotonic() - began
        if outcome.result is not None:
            snapshots[name] = outcome.result
            results[name] = HostResult(outcome.host, "ok", seconds=seconds)
        elif outcome.error is not None:
            results[name] = HostResult.of_error(outcome.host, outcome.error, seconds=seconds)
    names = [host.name for host in opened.hosts if host.name in results]
    report = Report(tuple(results[name] for name in names), time.monotonic() - began)
    return hosts_now({name: snapshots[name] for name in names if name in snapshots}), opened.options.in_report(report)


def _query(
    registry: RunRegistry, caller: CallWatcher, newest: int | None
) -> tuple[list[RunRecord], list[UnreadableRecord], list[KnownRun]]:
    """Return the records, the damaged ones, and what node0 knows of the runs. `newest`: ask only about so many."""
    abandoned_runs(registry.directory)
    records, damaged = registry.read_records()
    records = list(map(caller.with_login, records))
    if newest is not None:  # don't query the others
        records, damaged = records[-newest:], []
    with _sessions(caller) as open_session:
        return records, damaged, query_runs(records, open_session, caller.cancel)


@contextmanager
def _sessions(caller: CallWatcher) -> Iterator[Callable[..., Session]]:
    """Yield a function that opens a session to a host of a run; all are closed at the end."""
    with ExitStack() as connectors:

        def open_session(record: RunRecord, host: Host | None = None) -> Session:
            """Open a session to a host of the run; to node0 by default."""
            return connectors.enter_context(caller.connector(record)).open(host or record.node0, caller.cancel)

        yield open_session


def prune(
    caller: CallWatcher, *, dry_run: bool = False, force: bool = False
) -> tuple[list[PruneResult], list[PrunedRun]]:
    """Remove old runs from the nodes and from this machine. Returns what was, or would be, removed on each."""
    keep, registry = read_limits(os.environ), RunRegistry()
    _, _, runs = _query(registry, caller, None)
    with _sessions(caller) as open_session:
        nodes = prune_nodes(
            [run.record for run in runs], keep, open_session, caller.cancel, dry_run=dry_run, force=force
        )
    over = {run.record.id for run in runs if run.state in FINAL or run.is_gone}
    return nodes, prune_local(registry, keep, over=over, dry_run=dry_run)
