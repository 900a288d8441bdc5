"""Output of `ipexctl trust`: hosts with equal results on one line and the next command, or JSON."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from ipexctl.text import printable
from ipexctl.ui.messages import print_message
from ipexctl.ui.results import report_json, show_results

if TYPE_CHECKING:
    from ipexctl.trust.setup import TrustReport


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
