"""The steps of sync. Options are checked before the first host is contacted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ipexctl.api.open_hosts import OpenHosts
from ipexctl.homes.pending import abandoned_runs, runs_directory
from ipexctl.hosts.host import private_keys
from ipexctl.option_declaration import SyncOptions
from ipexctl.remote.outcome import Watch, ignore_event
from ipexctl.sync.node_calls import SyncReport, TreeCalls
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
    """Sync the project to the same path on every host; `on_read` gets it before it is sent.

    `asks_early`: ask the hosts for their copies while it is read. If reading fails, they wait until the pool closes.
    """
    hosts, pool = opened.hosts, opened.pool
    pool.warm(hosts)  # connect while the project is read

    calls = TreeCalls(opened.home, dry_run, opened.timeout)
    query = None
    if asks_early and not dry_run:
        query = TreeQuery(hosts, pool, calls)
    project = read_project(
        root,
        files.exclude,
        includes=files.include,
        home=opened.home,
        allow_big=files.allow_big,
        secret_files=private_keys(hosts),
        data=[Path(path) for path in files.data],
    )
    on_read(project)
    report = query_project(
        project,
        hosts,
        pool,
        calls,
        iface=opened.iface,
        watch=watch,
        ended=abandoned_runs(runs_directory()),
        query=query,
    ).upload()
    return opened.options.in_report(report)
