"""Output of `ipexctl trust`: hosts with equal results on one line and the next command, or JSON."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from ipexctl.text import printable
from ipexctl.ui.messages import print_message
from ipexctl.ui.results import host_json, print_json, show_results, summary_json

if TYPE_CHECKING:
    from ipexctl.trust.report import TrustReport


def as_json(report: TrustReport) -> dict[str, Any]:
    return {
        "schema": "ipexctl.trust/1",
        "node0": report.node0.name,
        "hosts": [
            {**host_json(result), "internal": result.internal, "ssh_name": result.ssh_name} for result in report.hosts
        ],
        "summary": summary_json(report.hosts),
        "config": None if report.config is None else printable(report.config),
        "by": report.by,
        "revoke": report.revoke,
        "dry_run": report.dry_run,
        "notes": [printable(note) for note in report.notes],
        "seconds": round(report.seconds, 3),
    }


def show_json(report: TrustReport) -> None:
    print_json(as_json(report))


def show(report: TrustReport, *, quiet: bool = False, no_color: bool = False, options: str = "") -> None:
    """Print results to stdout; failures and the next command to stderr."""
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
            print_message(f"some hosts still have our line; when they are well again: ipexctl trust --revoke{options}")
        elif statuses == {"ok"}:
            print_message("there was nothing of ours to take away")
        elif not report.notes:
            print_message("all is as it was before trust")
    elif report.by == "config" and not failed:
        result_text = (
            "was already so, nothing changed" if statuses == {"ok"} else "verified by a login from node0 to each"
        )
        print_message(f"node0 ({printable(report.node0.name)}) reaches every node; {result_text}")
        ssh_name = next((host.ssh_name for host in report.hosts[1:] if host.ssh_name), None)
        if report.config and ssh_name:
            print_message(f"try it on node0: ssh -F {shlex.quote(report.config)} {ssh_name}")
        print_message(f"next: ipexctl doctor{options}        to undo: ipexctl trust --revoke{options}")
    elif report.by == "own" and not failed and len(report.hosts) > 1:
        print_message(f"node0 ({printable(report.node0.name)}) already reaches every node by ssh; nothing changed")
    elif failed:
        print_message(f"when that is mended: ipexctl trust{options}")
