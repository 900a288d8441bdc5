"""`ipexctl trust --revoke`: removes the logins between nodes that earlier versions set up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipexctl.commands.shared_options import Home, Output, Targets, command, flag
from ipexctl.errors import UserError
from ipexctl.node.common.fix import Fix
from ipexctl.option_declaration import NO_OPTIONS, CallOptions
from ipexctl.ui.messages import print_message
from ipexctl.ui.results import report_json, show_results

if TYPE_CHECKING:
    from ipexctl.homes.trust_left import RevokeReport


@command()
def trust_command(
    *,
    revoke: bool = flag("--revoke", "Remove the key, lines and files that trust added, and nothing else."),
    dry_run: bool = flag("--dry-run", "Print what would change; change nothing."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Remove the logins between nodes that earlier versions set up.

    run starts the ranks of all hosts itself, so no node needs a login to
    another. uninstall removes them, too.

    \b
    Example: ipexctl trust --revoke --hosts 'node[1-4]'
    """
    from ipexctl.api.host_checks import revoke_trust
    from ipexctl.commands.target_hosts import open_hosts

    if not revoke:
        raise UserError(
            "trust is gone: run starts ranks on all hosts itself, and no node logs in to another",
            fix=Fix("leave it out; to remove the keys that it added: `ipexctl trust --revoke`"),
        )
    with open_hosts(targets, home, output, announces=False) as (opened, interrupt):
        report = revoke_trust(opened, dry_run=dry_run)
    output.print_report(report, as_json, show, options=opened.options)
    raise interrupt.or_exit(report.exit_code)


def as_json(report: RevokeReport) -> dict[str, Any]:
    return report_json("trust", report)


def show(report: RevokeReport, *, quiet: bool = False, options: CallOptions = NO_OPTIONS) -> None:
    show_results(report.hosts, quiet=quiet, dry_run=report.dry_run)
    statuses = {result.status for result in report.hosts}
    if quiet:
        return
    if report.dry_run:
        print_message("nothing was changed (--dry-run)")
    elif statuses & {"failed", "unreachable"}:
        again = Fix("failed hosts may still have ipexctl's line; once they work: `ipexctl trust --revoke`")
        print_message(options.apply(again))
    elif statuses == {"ok"}:
        print_message("nothing to remove")
    else:
        print_message("everything that trust added is removed")
