"""`ipexctl sync`: sync a project directory to the same path on every host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipexctl.commands.option_groups import Home, Output, Targets, argument, command, flag
from ipexctl.commands.target_hosts import current_directory, open_hosts, select
from ipexctl.node.common.json_records import encode
from ipexctl.option_declaration import SyncOptions
from ipexctl.projects.root import find_root
from ipexctl.text import format_count, tilde_path
from ipexctl.ui.message_output import print_message
from ipexctl.ui.progress_view import ProgressView
from ipexctl.ui.results import fold_equal, host_json, how_to_continue, report_json, show_results
from ipexctl.ui.text_table import print_lines

if TYPE_CHECKING:  # loaded while the hosts connect: 15 ms
    from ipexctl.sync.node_calls import SyncReport, SyncResult
    from ipexctl.sync.project import Project


@command()
def sync_command(
    *,
    directory: Path | None = argument(
        "[DIR]",
        "Project directory (default: found from the current directory upward).",
        None,
        readable=False,
    ),
    files: SyncOptions,
    dry_run: bool = flag("--dry-run", "Print what would be sent and deleted; change nothing."),
    targets: Targets,
    home: Home,
    output: Output,
) -> None:
    """Sync a project directory to the same path on every host.

    Files in .gitignore and .ipexctlignore are excluded, and so are
    credentials (.env, .ssh/, *.pem, …). Only missing data is sent, and only
    files of an earlier sync are deleted: files that runs wrote stay.

    \b
    Example: ipexctl sync --hosts 'node[1-4]' --exclude '*.ckpt' ~/train
    """
    root = find_root(None, directory, current_directory())
    selection = select(targets, root)

    def print_project(project: Project) -> None:
        """Print what is sent, and to which hosts."""
        output.print_note(f"project {tilde_path(project.root)} ({project.manifest.summary}), hosts: {selection.source}")

    with open_hosts(targets, home, output, hosts=selection.hosts, steps_from=2) as (opened, interrupt):
        opened.warm()
        from ipexctl.api.host_files import sync  # while the hosts connect

        with ProgressView(quiet=output.quiet, verbose=output.verbose > 0) as view:
            report = sync(opened, root, files, dry_run=dry_run, on_read=print_project, watch=view.watch)
    output.print_report(report, as_json, show)
    raise interrupt.or_exit(report.exit_code)


def as_json(report: SyncReport) -> dict[str, Any]:
    """Return the document."""
    hosts = [host_json(result, without=("moved_away",), aside=encode(result.moved_away)) for result in report.hosts]
    root = os.fspath(report.root)
    return report_json("sync", report, without=("size",), hosts=hosts, root=root, bytes=report.size)


def show(report: SyncReport, *, quiet: bool = False) -> None:
    """Print the results; with --dry-run also the paths."""
    show_results(report.hosts, _describe, quiet=quiet, dry_run=report.dry_run)
    if report.dry_run and not quiet:
        _show_paths(report)
    for text in report.differences("kept", "changed on the host since the last sync, and kept"):
        print_message("note: " + text)
    for text in report.warnings:
        print_message("warning: " + text)
    for note in report.notes:
        print_message("note: " + note)
    if not quiet:
        _print_next_step(report)


def _describe(result: SyncResult) -> str:
    """Describe what was sent to a host."""
    if result.status != "changed":
        return result.reason
    count = result.files_sent
    parts = [f"{format_count(count, 'file')} uploaded"] if count else []
    parts += [f"{result.files_deleted} deleted"] if result.files_deleted else []
    return "; ".join(filter(None, (", ".join(parts), result.reason))) or "directories and modes"


def _show_paths(report: SyncReport) -> None:
    """Print the paths that would be sent or deleted, once for equal hosts."""
    listed = [result for result in report.hosts if result.would_send or result.would_delete]
    groups = fold_equal(listed, lambda result: (result.would_send, result.would_delete))
    for (send, delete), names in groups.items():
        heading = [f"{names}:"] if len(groups) > 1 else []
        print_lines([*heading, *(f"  send    {path}" for path in send), *(f"  delete  {path}" for path in delete)])


def _print_next_step(report: SyncReport) -> None:
    """Print what to type next."""
    statuses = {result.status for result in report.hosts}
    if report.dry_run:
        print_message("nothing was sent (--dry-run)")
    elif report.hosts and statuses == {"ok"}:
        but = ", but for the files above" if any(result.kept or result.blocked for result in report.hosts) else ""
        print_message(f"nothing to do: every host has the same {format_count(report.files, 'file')}{but}")
    elif statuses & {"failed", "unreachable"}:
        print_message(how_to_continue(report.hosts, "sync"))
    if report.path is not None and not report.dry_run:
        print_message(f"on each host: {report.path}")
