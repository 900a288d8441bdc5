"""`ipexctl uninstall`: removes ipexctl from the hosts and from the control machine."""

from __future__ import annotations

import sys

import typer

from ipexctl.cli.options import Home, Output, Targets, command, flag
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
    from ipexctl.cli.hosts import call_options, check_home, choose_hosts, session_pool
    from ipexctl.run.uninstall import UninstallOptions, survey, uninstall
    from ipexctl.ui.uninstall import as_json, confirm, show

    home_dir = check_home(home)
    hosts = choose_hosts(targets)
    call = call_options(targets, home)
    selection = call.hosts
    if not dry_run and not yes and (output.json or not sys.stdin.isatty()):
        reason = "--json prints no question" if output.json else "stdin is no terminal to answer on"
        raise UserError(
            f"uninstall asks before it removes anything, and {reason}",
            fix=f"ipexctl uninstall{selection} --dry-run lists it; to remove it: ipexctl uninstall{selection} --yes",
        )
    options = UninstallOptions(home_dir, with_results, targets.timeout, selection)
    if dry_run or not yes:
        with session_pool(targets, output, hosts=hosts, quiet=output.quiet) as (pool, interrupt):
            report = survey(hosts, pool, options, dry_run=dry_run)
        output.print_report(call.in_report(report), as_json, show)
        if dry_run or interrupt.code is not None or report.control.has_failed or not report.has_changes:
            raise interrupt.or_exit(report.exit_code)
        if not confirm(report):
            output.print_note("nothing was removed")
            raise typer.Exit(1)
    with session_pool(targets, output, hosts=hosts, quiet=output.quiet) as (pool, interrupt):
        report = uninstall(hosts, pool, options)
    output.print_report(call.in_report(report), as_json, show)
    raise interrupt.or_exit(report.exit_code)
