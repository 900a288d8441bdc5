"""`ipexctl sync`: syncs a project directory to the same path on every host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ipexctl.commands.shared_options import Home, Output, Targets, argument, command, flag
from ipexctl.sync_options import SyncOptions
from ipexctl.text import tilde_path

if TYPE_CHECKING:
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
    from ipexctl.api.hosts import sync
    from ipexctl.commands.target_hosts import current_directory, open_hosts, select
    from ipexctl.sync.root import find_root

    root = find_root(None, directory, current_directory())
    selection = select(targets, root)

    def print_project(project: Project) -> None:
        output.print_note(f"project {tilde_path(project.root)} ({project.manifest.summary}), hosts: {selection.source}")

    with open_hosts(targets, home, output, hosts=selection.hosts, steps_from=2) as (opened, interrupt):
        opened.pool.warm(selection.hosts)  # connect while modules are imported
        from ipexctl.ui.progress_view import ProgressView
        from ipexctl.ui.sync import as_json, show

        with ProgressView(quiet=output.quiet, verbose=output.verbose > 0, no_color=output.no_color) as view:
            report = sync(opened, root, files, dry_run=dry_run, on_read=print_project, watch=view.watch)
    output.print_report(report, as_json, show)
    raise interrupt.or_exit(report.exit_code)
