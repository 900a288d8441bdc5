"""The steps of push. Options are checked before the first host is contacted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ipexctl.files.push_files import Push, PushOptions, PushReport
from ipexctl.files.push_source import list_source
from ipexctl.hub.downloader import HubAccess
from ipexctl.hub.hugging_face import HubRepo
from ipexctl.hub.push_from_hub import HubPushOptions, HubPushReport
from ipexctl.hub.push_from_hub import push_repos as push_from_hub
from ipexctl.option_declaration import HUB_MACHINE
from ipexctl.remote.connector import OpenHosts
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
    """Copy a file or directory to a path on every host."""
    opened.warm()  # connect while the source is read

    def on_bytes(done: int, total: int) -> None:
        """Show how much of the source is read."""
        watch(BytesMoved("", "reading", done, total))

    call = Push(list_source(source), str(source), opened, PushOptions(path, force, dry_run), watch)
    if call.has_room():
        call.source = call.source.hashed(on_bytes, opened.pool.cancel)
    return opened.options.in_report(call.run())


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
    """Copy repositories of a hub to the cache of every host. `on`: the machine that downloads."""
    opened.warm()

    options = HubPushOptions(on, tuple(include), dry_run)
    return opened.options.in_report(push_from_hub(repos, access, opened, options, watch))
