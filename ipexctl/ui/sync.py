"""Output of `ipexctl sync`: hosts with equal results on one line, files that were kept, or JSON."""

from __future__ import annotations

import os
import sys
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from ipexctl.text import counted, printable
from ipexctl.ui.messages import print_message
from ipexctl.ui.results import fold_equal, host_json, how_to_continue, report_json, show_results, value_json

if TYPE_CHECKING:
    from ipexctl.sync.node_calls import SyncReport, SyncResult

_LISTED: Final = 5


def as_json(report: SyncReport) -> dict[str, Any]:
    hosts = [host_json(result, without=("moved_away",), aside=value_json(result.moved_away)) for result in report.hosts]
    root = printable(os.fspath(report.root))
    return report_json("sync", report, without=("size",), hosts=hosts, root=root, bytes=report.size)


def show(report: SyncReport, *, quiet: bool = False, no_color: bool = False) -> None:
    show_results(report.hosts, _describe, quiet=quiet, no_color=no_color, dry_run=report.dry_run)
    if report.dry_run and not quiet:
        _show_paths(report)
    sys.stdout.flush()
    _print_kept(report)
    for note in report.notes:
        print_message(f"note: {printable(note)}")
    if not quiet:
        _print_next_step(report)


def _describe(result: SyncResult) -> str:
    if result.status != "changed":
        return result.reason
    count = result.files_sent
    parts = [f"{counted(count, 'file')} uploaded"] if count else []
    parts += [f"{result.files_deleted} deleted"] if result.files_deleted else []
    return "; ".join(filter(None, (", ".join(parts), result.reason))) or "directories and modes"


def _show_paths(report: SyncReport) -> None:
    listed = [result for result in report.hosts if result.would_send or result.would_delete]
    groups = fold_equal(listed, lambda result: (result.would_send, result.would_delete))
    for (send, delete), names in groups.items():
        if len(groups) > 1:
            sys.stdout.write(f"{names}:\n")
        sys.stdout.write("".join(f"  send    {printable(path)}\n" for path in send))
        sys.stdout.write("".join(f"  delete  {printable(path)}\n" for path in delete))


def _print_kept(report: SyncReport) -> None:
    """Files that differ from the project because runs wrote them on the hosts."""
    explanations = {
        "kept": "changed on the host since the last sync, and is kept",
        "blocked": "was written by a run on the host and is kept; the project's version is not on the host",
        "moved_away": "changed on the host and in the project: the project's version replaced it; the host's version "
        "is beside it as NAME.node-1",
    }
    for name, explanation in explanations.items():
        paths_of = attrgetter(name)
        for paths, names in fold_equal(filter(paths_of, report.hosts), paths_of).items():
            level = "warning" if name != "kept" else "note"
            more = f" and {len(paths) - _LISTED} more" if len(paths) > _LISTED else ""
            listed = ", ".join(map(printable, paths[:_LISTED]))
            print_message(f"{level}: {names}: {listed}{more} {explanation}")


def _print_next_step(report: SyncReport) -> None:
    statuses = {result.status for result in report.hosts}
    if report.dry_run:
        print_message("nothing was sent (--dry-run)")
    elif report.hosts and statuses == {"ok"}:
        print_message(f"nothing to do: every host has the same {counted(report.files, 'file')}")
    elif statuses & {"failed", "unreachable"}:
        print_message(how_to_continue(report.hosts, "sync"))
    if report.path is not None and not report.dry_run:
        print_message(f"on each host: {printable(report.path)}")
