"""The steps of sync, push and hub. Options are checked before the first host is contacted."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ipexctl.api.open_hosts import OpenHosts
from ipexctl.files.push import PushOptions, PushReport
from ipexctl.files.push import push as push_to_hosts
from ipexctl.files.push_source import read_source
from ipexctl.hosts.host import private_keys
from ipexctl.hub.cache import CacheReport, list_cache, remove_from_cache
from ipexctl.hub.downloader import hub_access
from ipexctl.hub.push import HubPushOptions, HubPushReport
from ipexctl.hub.push import push_repos as push_from_hub
from ipexctl.hugging_face import HubRepo
from ipexctl.option_defaults import HUB_MACHINE
from ipexctl.remote.outcome import BytesMoved, Watch, ignore_event
from ipexctl.run.registry import RunRegistry, abandoned_runs
from ipexctl.sync.node_calls import SyncReport, TreeCalls
from ipexctl.sync.project import Project, read_project
from ipexctl.sync.project_sync import TreeQuery, query_project
from ipexctl.sync_options import SyncOptions


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

    query = None
    if asks_early and not dry_run and opened.timeout is None:  # the timeout would include reading the project
        query = TreeQuery(hosts, pool, TreeCalls(opened.home, dry_run, opened.timeout, pool.cancel))
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
        home=opened.home,
        iface=opened.iface,
        watch=watch,
        timeout=opened.timeout,
        dry_run=dry_run,
        ended=abandoned_runs(RunRegistry().directory),
        query=query,
    ).upload()
    return opened.options.in_report(report)


def push(
    opened: OpenHosts,
    source: Path,
    path: str,
    *,
    force: bool = False,
    dry_run: bool = False,
    watch: Watch = ignore_event,
) -> PushReport:
    hosts, pool = opened.hosts, opened.pool
    pool.warm(hosts)  # connect while the source is read

    content = read_source(source, lambda done, total: watch(BytesMoved("", "reading", done, total)), pool.cancel)
    options = PushOptions(path, opened.home, force, dry_run, opened.iface, opened.timeout)
    return opened.options.in_report(push_to_hosts(content, str(source), hosts, pool, options, watch))


def push_repos(
    opened: OpenHosts,
    repos: Sequence[HubRepo],
    *,
    include: Sequence[str] = (),
    on: str = HUB_MACHINE,
    dry_run: bool = False,
    watch: Watch = ignore_event,
) -> HubPushReport:
    """Copy hub repositories to every host's cache. Uses this process's HF_ENDPOINT and HF_TOKEN."""
    opened.pool.warm(opened.hosts)

    options = HubPushOptions(opened.home, on, tuple(include), dry_run, opened.iface, opened.timeout)
    report = push_from_hub(repos, hub_access(os.environ), opened.hosts, opened.pool, options, watch)
    return opened.options.in_report(report)


def list_repos(opened: OpenHosts) -> CacheReport:
    return opened.options.in_report(list_cache(opened.hosts, opened.pool, opened.home, opened.timeout))


def remove_repos(opened: OpenHosts, repos: Sequence[HubRepo]) -> CacheReport:
    return opened.options.in_report(remove_from_cache(repos, opened.hosts, opened.pool, opened.home, opened.timeout))
