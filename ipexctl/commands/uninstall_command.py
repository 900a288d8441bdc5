"""`ipexctl uninstall`: removes ipexctl from the hosts and from the control machine."""

from __future__ import annotations

import sys

import typer

from ipexctl.commands.shared_options import Home, Output, Targets, command, flag
from ipexctl.errors import UserError


@command()
def uninstall_command(
    *,
    with_results: bool = flag("--with-results", "Remove the files that runs wrote, too: checkpoints, output."),
    dry_run: bool = flag("--dry-run", "List what would be removed; remove nothing."),
    yes: bool = flag("--yes -y", "Remove without asking first."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Remove everything that ipexctl put on the hosts and on the control machine.

    It lists what it found and asks before it removes anything. Files that
    runs wrote stay, unless --with-results is given. While a run is alive on
    one of the hosts, nothing is removed; --dry-run still lists everything.

    \b
    Example: ipexctl uninstall --hosts 'node[1-4]' --dry-run
    """
    from ipexctl.api.hosts import uninstall
    from ipexctl.commands.target_hosts import host_options, open_hosts
    from ipexctl.ui.uninstall import as_json, confirm, show

    if not dry_run and not yes and (output.json or not sys.stdin.isatty()):
        selection = host_options(targets, home)
        reason = "--json prints no question" if output.json else "stdin is no terminal to answer on"
        raise UserError(
            f"uninstall asks before it removes anything, and {reason}",
            fix=f"ipexctl uninstall{selection} --dry-run lists it; to remove it: ipexctl uninstall{selection} --yes",
        )
    if dry_run or not yes:
        with open_hosts(targets, home, output) as (opened, interrupt):
            report = uninstall(opened, with_results=with_results, only_lists=True, dry_run=dry_run)
        output.print_report(report, as_json, show)
        if dry_run or interrupt.code is not None or report.control.has_failed or not report.has_changes:
            raise interrupt.or_exit(report.exit_code)
        if not confirm(report):
            output.print_note("nothing was removed")
            raise typer.Exit(1)
    with open_hosts(targets, home, output) as (opened, interrupt):
        report = uninstall(opened, with_results=with_results)
    output.print_report(report, as_json, show)
    raise interrupt.or_exit(report.exit_code)
