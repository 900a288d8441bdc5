"""`ipexctl ps`: lists the runs started from the control machine, and prunes old ones."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import typer

from ipexctl.cli.options import TIMEOUT, Output, command, flag, option
from ipexctl.errors import UserError
from ipexctl.limits import PS_ANSWER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session
    from ipexctl.run.ps import KnownRun
    from ipexctl.run.registry import RunRecord, RunRegistry
    from ipexctl.run.retention import RetentionLimits


@command()
def ps_command(
    *,
    running: bool = flag("--running", "Show only runs that have not ended."),
    newest: int | None = option("-n --newest N", "Show only the newest N runs (default: all).", min=1),
    prune: bool = flag("--prune", "Remove runs beyond 30 days or 2 GB from the nodes and the control machine."),
    dry_run: bool = flag("--dry-run", "Print what --prune would remove; remove nothing."),
    timeout: float | None = TIMEOUT,
    output: Output,
) -> None:
    """List the runs started from the control machine and their states.

    A run's record (its output and status) stays on a node for 30 days, while
    all records there take up to 2 GB; the newest 10 always stay. To change the
    limits of run and --prune: IPEXCTL_KEEP_DAYS and IPEXCTL_KEEP_GB.

    \b
    Example: ipexctl ps
    """
    from ipexctl.cli.hosts import check_seconds
    from ipexctl.cli.interrupt import cancelling
    from ipexctl.cli.run_hosts import connector_of
    from ipexctl.remote.cancel import Cancel
    from ipexctl.run.ps import forgettable, query_runs, with_copies
    from ipexctl.run.registry import RunRegistry, abandoned_runs
    from ipexctl.run.retention import read_limits
    from ipexctl.ui.messages import print_user_error
    from ipexctl.ui.ps import as_json, show

    if dry_run and not prune:
        raise UserError("--dry-run is for --prune", fix="ipexctl ps --prune --dry-run")
    if newest is not None and prune:
        raise UserError("-n chooses runs to show, not to prune", fix="leave -n or --prune out")
    check_seconds("--timeout", timeout)
    keep = read_limits(os.environ)
    register = RunRegistry()
    abandoned_runs(register.directory)
    records, damaged = register.read_records()
    if newest is not None and not (running or prune):  # other runs are not even queried
        records, damaged = records[-newest:], []
    cancel = Cancel()
    with cancelling(cancel) as interrupt, ExitStack() as connectors:

        def open_session(record: RunRecord, host: Host | None = None) -> Session:
            return connectors.enter_context(connector_of(record, output)).open(host or record.node0, cancel)

        runs = query_runs(records, open_session, cancel, timeout=timeout or PS_ANSWER)
        if prune:
            code = _prune(register, runs, keep, open_session, cancel, output, dry_run=dry_run)
            raise typer.Exit(interrupt.code or code)
    known = {record.id: record for record in records}
    for placed in [run.record for run in runs if run.record != known[run.record.id]]:  # submitted runs that have begun
        register.save(placed)
    runs = with_copies(runs, register.directory)
    if running:
        runs = [run for run in runs if run.state in ("queued", "starting", "running", "unknown")]
    hidden = len(records) - len(runs)
    runs = runs[-newest:] if newest is not None else runs
    output.print_report(runs, partial(as_json, damaged=damaged), show, hidden=hidden)
    for entry in damaged:
        print_user_error(entry.error())
    for run in forgettable(runs, keep.days, time.time()):
        register.remove(run)
    raise typer.Exit(interrupt.code or 0)


def _prune(
    register: RunRegistry,
    runs: Sequence[KnownRun],
    keep: RetentionLimits,
    open_session: Callable[[RunRecord, Host], Session],
    cancel: Cancel,
    output: Output,
    *,
    dry_run: bool,
) -> int:
    from ipexctl.node.common.records import FINAL
    from ipexctl.remote.outcome import exit_code
    from ipexctl.run.retention import prune_local, prune_nodes
    from ipexctl.ui.ps import pruned_json, show_pruned
    from ipexctl.ui.results import print_json

    nodes = prune_nodes([run.record for run in runs], keep, open_session, cancel, dry_run=dry_run)
    over = {run.record.id for run in runs if run.state in FINAL or run.is_gone}
    local = prune_local(register, keep, over=over, dry_run=dry_run)
    if output.json:
        print_json(pruned_json(nodes, local, dry_run=dry_run))
    else:
        show_pruned(nodes, local, dry_run=dry_run, quiet=output.quiet)
    return exit_code([entry.status for entry in nodes])
