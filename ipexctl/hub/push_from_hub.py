"""Copy repositories of a hub to the cache of every host: the command `ipexctl push hf:ORG/MODEL`.

One machine downloads (`downloader.py` chooses it), and the files then go from host to host as in any push. Only the
downloading machine gets the token, on stdin. The list of files comes from a host, so it is checked before it is used:
no path may lead out of the repository's directory (`node/common/hub_cache.py: first_misplaced_path`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent import futures
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ipexctl.facts.facts import Facts
from ipexctl.facts.gather import gather_facts
from ipexctl.files.file_transfer import FileTransfer, Origin
from ipexctl.files.push_files import Push, PushOptions, PushReport, PushResult
from ipexctl.files.push_source import PushSource
from ipexctl.files.routes import Distributor
from ipexctl.files.sent_manifest import Manifest
from ipexctl.files.store_client import StoredFile, StoreLocation
from ipexctl.hosts.host import Host
from ipexctl.hub.downloader import Downloader, HubAccess, find_downloader
from ipexctl.hub.hugging_face import HubRepo, hf_home
from ipexctl.limits import OFFER_CLEANUP
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.hub_cache import HUB_CACHE, first_misplaced_path
from ipexctl.node.common.json_records import JsonError
from ipexctl.node.files.call_replies import SnapshotReply
from ipexctl.node.files.manifest import ManifestEntry, read_entries
from ipexctl.node.files.place import CONTENT
from ipexctl.node.hub.hub_download import HubDownloadRequest, OfferRequest
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.node_call import AgentPlace, HeldCall, call
from ipexctl.remote.outcome import BytesMoved, HostError, Notice, Watch, ignore_event
from ipexctl.remote.reply import MalformedReply, Reply
from ipexctl.text import readable


@dataclass(frozen=True, slots=True)
class PushedRepo:
    word: str
    """The repository as in the command: `hf:org/model`."""
    commit: str
    files: int
    bytes: int
    downloaded_bytes: int
    """Bytes that the downloading machine lacked; in a dry run, that it lacks."""
    path: str = ""
    """Directory of a dataset on the hosts, which scripts and options name there; empty for a model."""


@dataclass(frozen=True, slots=True)
class HubPushReport(PushReport):
    on: str = ""
    """Name of the machine that downloads; empty if none could be chosen."""
    repos: tuple[PushedRepo, ...] = ()
    """Empty if the download failed."""


@dataclass(frozen=True, slots=True)
class HubPushOptions:
    on: str
    """The machine that downloads: `auto`, `control`, `node0` or the name of a host."""
    include: tuple[str, ...] = ()
    """Patterns of files; empty for all files."""
    dry_run: bool = False


def push_repos(
    repos: Sequence[HubRepo],
    access: HubAccess,
    opened: OpenHosts,
    options: HubPushOptions,
    watch: Watch = ignore_event,
) -> HubPushReport:
    """Download the repositories on one machine, and copy them to the other hosts.

    If the download fails, the report has that error for every host. Raises a UserError if `options.on` is not a host of
    the call.
    """
    began, hosts = time.monotonic(), opened.hosts
    source_text = " ".join(repo.word for repo in repos)
    cache = hf_home(opened.home)
    facts: dict[str, Facts] = {
        answer.host.name: answer.facts for answer in gather_facts(opened) if answer.facts is not None
    }
    on = ""
    try:
        downloader = find_downloader(options.on, access, opened, facts, watch)
        on = downloader.name
        entries, snapshots = _download(repos, access, downloader, opened, options, watch)
    except HostError as error:
        seconds = time.monotonic() - began
        error_of_machine = HostError(f"{on}: {error.reason}", error.fix) if on else error
        failed = tuple(PushResult.of_error(host, error_of_machine, seconds=seconds) for host in hosts)
        return HubPushReport(failed, seconds, source_text, cache, 0, 0, True, options.dry_run, on)
    manifest = Manifest.of([entry._replace(path=f"{HUB_CACHE}/{entry.path}") for entry in entries])
    source = PushSource(Path(cache).expanduser(), manifest)
    push = Push(
        source,
        source_text,
        opened.only(host for host in hosts if host != downloader.host),
        PushOptions(cache, True, options.dry_run, repos=source_text),
        watch,
        facts=facts,
        origin=None if downloader.is_control else _send_from(downloader, manifest),
        sender=None if downloader.is_control else downloader.host,
    )
    report = push.run()
    homes = (host_facts.home for host_facts in facts.values())
    cache_on_hosts = next((hf_home(home.path) for home in homes if home is not None), cache)
    pushed = tuple(
        PushedRepo(
            repo.word,
            snapshot.commit,
            snapshot.files,
            _size_of(snapshot, entries),
            snapshot.downloaded,
            f"{cache_on_hosts}/{HUB_CACHE}/{repo.folder}/snapshots/{snapshot.commit}" if repo.kind == "dataset" else "",
        )
        for repo, snapshot in zip(repos, snapshots, strict=True)
    )
    done = {result.host.name: result for result in report.hosts}
    if not downloader.is_control:
        done[downloader.host.name] = _downloader_result(downloader.host, pushed, cache, time.monotonic() - began)
    return HubPushReport(
        tuple(done[host.name] for host in hosts if host.name in done),
        time.monotonic() - began,
        source_text,
        cache,
        sum(repo.files for repo in pushed),
        manifest.size,
        True,
        options.dry_run,
        downloader.name,
        pushed,
    )


def _downloader_result(host: Host, pushed: Sequence[PushedRepo], path: str, seconds: float) -> PushResult:
    """Return the result of the host that downloaded, to which nothing was pushed."""
    downloaded = sum(repo.downloaded_bytes for repo in pushed)
    files = sum(repo.files for repo in pushed)
    if not downloaded:
        return PushResult(host, "ok", seconds=seconds, path=path, same=files)
    return PushResult(host, "changed", f"{readable(downloaded)} from the hub", seconds=seconds, path=path)


def _size_of(snapshot: SnapshotReply, entries: Sequence[ManifestEntry]) -> int:
    """Return the bytes of a snapshot's files; a file that it has twice counts once."""
    blobs = f"{snapshot.folder}/blobs/"
    return sum(entry.size for entry in entries if entry.kind == "f" and entry.path.startswith(blobs))


def _download(
    repos: Sequence[HubRepo],
    access: HubAccess,
    downloader: Downloader,
    opened: OpenHosts,
    options: HubPushOptions,
    watch: Watch,
) -> tuple[list[ManifestEntry], tuple[SnapshotReply, ...]]:
    """Download on the chosen machine; return the entries of its cache, and a snapshot for each repository.

    In a dry run, the machine only asks the hub. Raises a HostError if the download fails, and a MalformedReply if the
    machine answers with other repositories or with paths outside them.
    """
    request: HubDownloadRequest = {
        "home": opened.home,
        "repos": [{"kind": repo.kind, "repo_id": repo.repo_id, "revision": repo.revision} for repo in repos],
        "include": list(options.include),
        "endpoint": access.endpoint,
        "token": access.token,
        "dry_run": options.dry_run,
    }
    folders = [repo.folder for repo in repos]
    verb = "asks for" if options.dry_run else "downloads"
    watch(Notice(f"{downloader.name} {verb} {', '.join(repo.word for repo in repos)} from {access.url}"))

    def on_event(event: Reply) -> None:
        if event.get("event") == "progress" and event.integer("total"):
            name = "" if downloader.is_control else downloader.host.name
            watch(BytesMoved(name, "downloading", event.integer("done"), event.integer("total")))

    reply = call(
        opened.pool.session(downloader.host),
        "hub.hub_download",
        "download",
        request,
        AgentPlace(downloader.python),
        label="download from the hub",
        on_event=on_event,
        timeout=opened.timeout,
    )
    snapshots = tuple(record.decode(SnapshotReply) for record in reply.records("snapshots"))
    if [snapshot.folder for snapshot in snapshots] != folders:
        raise MalformedReply("it names other repositories", str(dict(reply))[:200])
    entries = chain.from_iterable(_read_entries(snapshot.folder, snapshot.entries) for snapshot in snapshots)
    return list(entries), snapshots


def _read_entries(folder: str, text: str) -> list[ManifestEntry]:
    """Return the entries in a host's list. Raises a MalformedReply if one is not of this repository's directory."""
    try:
        entries = read_entries(text.encode())
    except (AgentError, JsonError, TypeError, ValueError) as error:
        raise MalformedReply(str(error), text[:200]) from None
    if wrong := first_misplaced_path(entries, folder):
        raise MalformedReply("a file does not belong in a hub cache", wrong)
    return entries


def _send_from(downloader: Downloader, manifest: Manifest) -> Origin:
    """Return the origin of a push whose files are in the cache of the host that downloaded them."""

    def send(transfer: FileTransfer, held: ExitStack) -> list[Distributor]:
        """Let the host offer its files until `held` is closed, and return what distributes them."""
        host, pool = downloader.host, transfer.pool
        files = [StoredFile(sha256, CONTENT, manifest.files[sha256].size) for sha256 in transfer.contents]
        paths = [[sha256, manifest.files[sha256].path.removeprefix(f"{HUB_CACHE}/")] for sha256 in transfer.contents]
        request: OfferRequest = {"home": transfer.opened.home, "files": paths}

        def offer(**options: Any) -> None:
            call(pool.session(host), "hub.hub_download", "offer", request, **options)

        offered = HeldCall(offer, _store_of, "its store of files for other hosts has ended")
        held.callback(lambda: futures.wait([offered.end()], OFFER_CLEANUP))
        address = transfer.addresses.get(host.name)
        source = StoreLocation(host, downloader.python, offered.value.result(), address, is_guarded=True)
        return [Distributor(pool, source, files, transfer.watch, timeout=transfer.opened.timeout)]

    return send


def _store_of(event: Reply) -> str | None:
    """Return the path of the store that the host offers; None for any other event."""
    return event.text("store") if event.get("event") == "offered" else None
