"""Output of `ipexctl push`: hosts with equal results on one line, what would be sent, or JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ipexctl.text import counted, printable, readable
from ipexctl.ui.messages import print_message
from ipexctl.ui.results import fold_equal, how_to_continue, report_json, show_results

if TYPE_CHECKING:
    from ipexctl.files.push import PushReport, PushResult


def as_json(report: PushReport) -> dict[str, Any]:
    return report_json("push", report, without=("size",), bytes=report.size)


def show(report: PushReport, *, quiet: bool = False, no_color: bool = False) -> None:
    show_results(report.hosts, _describe, quiet=quiet, no_color=no_color, dry_run=report.dry_run)
    if report.dry_run and not quiet:
        _show_names(report)
    sys.stdout.flush()
    if not quiet:
        _print_next_step(report)


def _describe(result: PushResult) -> str:
    if result.status != "changed" or result.reason:
        return result.reason
    parts = [counted(result.files_sent, "file")] if result.files_sent else ["directories"]
    parts += [f"{result.replaced:,} of them in place of others"] if result.replaced else []
    parts += [f"{result.same:,} {'was' if result.same == 1 else 'were'} there"] if result.same else []
    return f"{', '.join(parts)}: {result.path}"


def _show_names(report: PushReport) -> None:
    groups = fold_equal([result for result in report.hosts if result.would_send], lambda result: result.would_send)
    for names, hosts in groups.items():
        if len(groups) > 1:
            sys.stdout.write(f"{hosts}:\n")
        sys.stdout.write("".join(f"  send    {printable(name or report.path)}\n" for name in names))


def _print_next_step(report: PushReport) -> None:
    statuses = {result.status for result in report.hosts}
    cut_short = [result for result in report.hosts if result.status in ("failed", "unreachable") and not result.refused]
    if report.dry_run:
        print_message("nothing was sent (--dry-run)")
    elif report.hosts and statuses == {"ok"}:
        size = f"{counted(report.files, 'file')}, {readable(report.size)}"
        print_message(f"nothing to do: every host has the same {size}")
    elif cut_short:
        print_message(how_to_continue(cut_short, "push"))
