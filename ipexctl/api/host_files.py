"""The steps of sync. Options are checked before the first host is contacted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ipexctl.homes.pending import abandoned_runs, runs_directory
from ipexctl.hosts.host import private_keys
from ipexctl.option_declaration import SyncOptions
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.outcome import Watch, ignore_event
from ipexctl.sync.node_calls import SyncReport
from ipexctl.sync.project import Project, read_project
from ipexctl.sync.project_sync import TreeQuery, query_project


def sync(
    opened: OpenHosts,
    root: Path,
    files: SyncOptions,
    *,
    dry_run: bool = False,
    asks_early: bool = True,
    on_read: Callable[[Project], object] = ignore_event,
    watch: Watch = ignore_event,
) -> SyncReport:
    """Sync the project to the same path on every host. `on_read` gets the project before it is sent.

    `asks_early`: ask the hosts for their copies while the project is read. If reading fails, they wait until the pool
    closes.
    """
    opened.warm()  # connect while the project is read

    query = TreeQuery(opened) if asks_early and not dry_run else None
    project = read_project(
        root,
        files.exclude,
        includes=files.include,
        home=opened.home,
        allow_big=files.allow_big,
        secret_files=private_keys(opened.hosts),
        data=[Path(path) for path in files.data],
    )
    on_read(project)
    abandoned = abandoned_runs(runs_directory())
    comparison = query_project(project, opened, dry_run=dry_run, watch=watch, ended=abandoned, query=query)
    return opened.options.in_report(comparison.upload())
