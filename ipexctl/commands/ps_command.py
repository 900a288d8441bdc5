"""`ipexctl ps`: lists the runs started from the control machine, and prunes old ones."""

from __future__ import annotations

from functools import partial

import typer

from ipexctl.commands.shared_options import TIMEOUT, Output, command, flag, option
from ipexctl.errors import UserError


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
    from ipexctl.api.hosts import check_seconds
    from ipexctl.api.runs import prune as prune_runs
    from ipexctl.api.runs import ps
    from ipexctl.commands.run_calls import call_about_runs
    from ipexctl.remote.outcome import exit_code
    from ipexctl.ui.messages import print_user_error
    from ipexctl.ui.ps import as_json, pruned_json, show, show_pruned
    from ipexctl.ui.results import print_json

    if dry_run and not prune:
        raise UserError("--dry-run is for --prune", fix="ipexctl ps --prune --dry-run")
    if newest is not None and prune:
        raise UserError("-n chooses runs to show, not to prune", fix="leave -n or --prune out")
    check_seconds("--timeout", timeout)
    if prune:
        with call_about_runs(output) as (caller, interrupt):
            nodes, local = prune_runs(caller, dry_run=dry_run, timeout=timeout)
        if output.json:
            print_json(pruned_json(nodes, local, dry_run=dry_run))
        else:
            show_pruned(nodes, local, dry_run=dry_run, quiet=output.quiet)
        raise typer.Exit(interrupt.code or exit_code([entry.status for entry in nodes]))
    with call_about_runs(output) as (caller, interrupt):
        known = ps(caller, running=running, newest=newest, timeout=timeout)
    output.print_report(known.runs, partial(as_json, damaged=known.damaged), show, hidden=known.hidden)
    for entry in known.damaged:
        print_user_error(entry.error())
    raise typer.Exit(interrupt.code or 0)
