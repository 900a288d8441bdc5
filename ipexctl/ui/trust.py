"""Output of `ipexctl trust`: hosts with equal results on one line and the next command, or JSON."""

from __future__ import annotations

import json
import shlex
import sys
from typing import TYPE_CHECKING, Any

from ipexctl.text import printable
from ipexctl.ui.messages import print_message

if TYPE_CHECKING:
    from ipexctl.trust.report import TrustReport

_STATUSES = ("ok", "changed", "failed", "unreachable")


def as_json(report: TrustReport) -> dict[str, Any]:
    return {
        "schema": "ipexctl.trust/1",
        "node0": report.node0.name,
        "hosts": [
            {
                "name": done.host.name,
                "address": done.host.address,
                "internal": done.internal,
                "ssh_name": done.ssh_name,
                "status": done.status,
                "reason": printable(done.reason),
                "fix": printable(done.fix),
                "seconds": round(done.seconds, 3),
            }
            for done in report.hosts
        ],
        "summary": {status: sum(done.status == status for done in report.hosts) for status in _STATUSES},
        "config": None if report.config is None else printable(report.config),
        "by": report.by,
        "revoke": report.revoke,
        "dry_run": report.dry_run,
        "notes": [printable(note) for note in report.notes],
        "seconds": round(report.seconds, 3),
    }


def show_json(report: TrustReport) -> None:
    sys.stdout.write(json.dumps(as_json(report), indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def show(report: TrustReport, *, quiet: bool = False, options: str = "") -> None:
    """Print results to stdout; failures and the next command to stderr."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for done in report.hosts:
        groups.setdefault((done.status, done.reason, done.fix), []).append(done.host.name)
    for (status, reason, fix), names in groups.items():
        line = f"{_fold(names)}: {_status(status, report)}" + (f": {printable(reason)}" if reason else "")
        if status in ("failed", "unreachable"):
            print_message(line + (f"\n  {printable(fix)}" if fix else ""))
        elif not quiet:
            sys.stdout.write(line + "\n")
    sys.stdout.flush()
    for note in report.notes:
        print_message(f"note: {printable(note)}")
    if not quiet:
        _print_next_step(report, options)


def _status(status: str, report: TrustReport) -> str:
    return "would change" if report.dry_run and status == "changed" else status


def _print_next_step(report: TrustReport, options: str) -> None:
    statuses = {done.status for done in report.hosts}
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


def _fold(names: list[str]) -> str:
    if len(names) == 1:
        return printable(names[0])
    from ipexctl.hosts.nodeset import fold

    return printable(fold(names))
