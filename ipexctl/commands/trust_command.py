"""`ipexctl trust`: sets up or revokes ssh logins from node0 to every node."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from ipexctl.commands.shared_options import Home, Output, Targets, command, flag
from ipexctl.text import printable
from ipexctl.ui.messages import print_message
from ipexctl.ui.results import report_json, show_results

if TYPE_CHECKING:
    from ipexctl.trust.trust_setup import TrustReport


@command()
def trust_command(
    *,
    revoke: bool = flag("--revoke", "Remove the key, lines and files that trust added, and nothing else."),
    dry_run: bool = flag("--dry-run", "Print what would change; change nothing."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Let node0, the first host, log in to every node by ssh, as mpirun needs.

    The private key stays on node0, where it is created. Each
    authorized_keys gets one line: the key works only from node0's addresses,
    without a terminal or tunnels. If node0 can already log in, nothing
    changes.

    \b
    Example: ipexctl trust --hosts 'node[1-4]'
    """
    from ipexctl.api.host_checks import trust
    from ipexctl.commands.target_hosts import open_hosts

    with open_hosts(targets, home, output, announces=False) as (opened, interrupt):
        report = trust(opened, revoke=revoke, dry_run=dry_run)
    if targets.host_keys == "off" and report.by == "config":
        print_message("note: with --host-keys off, the host keys on node0 are not verified")
    output.print_report(report, as_json, show, options=opened.options.hosts)
    raise interrupt.or_exit(report.exit_code)


def as_json(report: TrustReport) -> dict[str, Any]:
    return report_json("trust", report, node0=report.node0.name)


def show(report: TrustReport, *, quiet: bool = False, no_color: bool = False, options: str = "") -> None:
    show_results(report.hosts, quiet=quiet, no_color=no_color, dry_run=report.dry_run)
    for note in report.notes:
        print_message(f"note: {printable(note)}")
    if not quiet:
        _print_next_step(report, options)


def _print_next_step(report: TrustReport, options: str) -> None:
    statuses = {result.status for result in report.hosts}
    failed = statuses & {"failed", "unreachable"}
    if report.dry_run:
        print_message("nothing was changed (--dry-run)")
    elif report.revoke:
        if failed:
            print_message(
                f"failed hosts may still have ipexctl's line; once they work: ipexctl trust --revoke{options}"
            )
        elif statuses == {"ok"}:
            print_message("nothing to remove")
        elif not report.notes:
            print_message("everything that trust added is removed")
    elif report.by == "config" and not failed:
        result_text = "nothing changed" if statuses == {"ok"} else "each login was tested"
        print_message(f"node0 ({printable(report.node0.name)}) can log in to every node; {result_text}")
        ssh_name = next((host.ssh_name for host in report.hosts[1:] if host.ssh_name), None)
        if report.config and ssh_name:
            print_message(f"try it on node0: ssh -F {shlex.quote(report.config)} {ssh_name}")
        print_message(f"next: ipexctl doctor{options}        to undo: ipexctl trust --revoke{options}")
    elif report.by == "own" and not failed and len(report.hosts) > 1:
        print_message(f"node0 ({printable(report.node0.name)}) can already log in to every node; nothing changed")
    elif failed:
        print_message(f"once this is fixed: ipexctl trust{options}")
