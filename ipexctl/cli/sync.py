"""`ipexctl sync`: syncs a project directory to the same path on every host."""

from __future__ import annotations

from pathlib import Path

from ipexctl.cli.options import Home, Output, Targets, argument, command, flag
from ipexctl.sync_options import SyncOptions
from ipexctl.text import tilde_path


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
    from ipexctl.cli.hosts import call_options, check_home, current_directory, select, session_pool
    from ipexctl.sync.root import find_root

    home_dir = check_home(home)
    root = find_root(None, directory, current_directory())
    selection = select(targets, root)
    with session_pool(targets, output if output.verbose > 1 else None, hosts=selection.hosts, quiet=output.quiet) as (
        pool,
        interrupt,
    ):
        pool.warm(selection.hosts)  # they are connected while modules are imported and the project is read
        from ipexctl.hosts.host import private_keys
        from ipexctl.run.registry import RunRegistry, abandoned_runs
        from ipexctl.sync.node_calls import TreeCalls
        from ipexctl.sync.project import read_project
        from ipexctl.sync.sync import TreeQuery, query_project
        from ipexctl.ui.progress_view import ProgressView
        from ipexctl.ui.sync import as_json, show

        query = None
        if not dry_run and targets.timeout is None:  # it would include the time for reading the project
            query = TreeQuery(selection.hosts, pool, TreeCalls(home_dir, dry_run, targets.timeout, pool.cancel))
        project = read_project(
            root,
            files.exclude,
            includes=files.include,
            home=home_dir,
            allow_big=files.allow_big,
            secret_files=private_keys(selection.hosts),
            data=[Path(path) for path in files.data],
        )
        output.print_note(f"project {tilde_path(project.root)} ({project.manifest.summary}), hosts: {selection.source}")
        with ProgressView(quiet=output.quiet, verbose=output.verbose > 0, no_color=output.no_color) as view:
            report = query_project(
                project,
                selection.hosts,
                pool,
                home=home_dir,
                iface=home.iface,
                watch=view.watch,
                timeout=targets.timeout,
                dry_run=dry_run,
                ended=abandoned_runs(RunRegistry().directory),
                may_update=True,
                query=query,
            ).upload()
    output.print_report(call_options(targets, home).in_report(report), as_json, show)
    raise interrupt.or_exit(report.exit_code)
