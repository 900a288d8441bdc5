"""The steps of push. Options are checked before the first host is contacted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ipexctl.api.open_hosts import OpenHosts
from ipexctl.files.push import Push, PushOptions, PushReport
from ipexctl.files.push_source import read_source
from ipexctl.hub.downloader import HubAccess
from ipexctl.hub.hugging_face import HubRepo
from ipexctl.hub.push_from_hub import HubPushOptions, HubPushReport
from ipexctl.hub.push_from_hub import push_repos as push_from_hub
from ipexctl.option_declaration import HUB_MACHINE
from ipexctl.remote.outcome import BytesMoved, Watch, ignore_event


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
    return opened.options.in_report(Push(content, str(source), hosts, pool, options, watch).run())


def push_repos(
    opened: OpenHosts,
    repos: Sequence[HubRepo],
    access: HubAccess,
    *,
    include: Sequence[str] = (),
    on: str = HUB_MACHINE,
    dry_run: bool = False,
    watch: Watch = ignore_event,
) -> HubPushReport:
    """Copy hub repositories to every host's cache."""
    opened.pool.warm(opened.hosts)

    options = HubPushOptions(opened.home, on, tuple(include), dry_run, opened.iface, opened.timeout)
    report = push_from_hub(repos, access, opened.hosts, opened.pool, options, watch)
    return opened.options.in_report(report)
