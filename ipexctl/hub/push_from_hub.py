"""`ipexctl push hf:ORG/MODEL`: copies repositories of a hub to every host's cache. One machine downloads, and the files
then go from host to host as in any push. Only the downloading machine gets the token, on stdin. A file list from a host
is checked before use (`node/common/hub_cache.py: misplaced`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ipexctl.facts.facts import Facts
from ipexctl.facts.gather import gather_facts
from ipexctl.files.distribute import Distributor
from ipexctl.files.manifest import Manifest
from ipexctl.files.push import PushOptions, PushReport, PushResult, push
from ipexctl.files.push_source import PushSource
from ipexctl.files.store_client import StoredFile, StoreLocation
from ipexctl.files.upload import UploadOptions, addresses_for_transfer
from ipexctl.hosts.host import Host
from ipexctl.hub.downloader import Downloader, HubAccess, find_downloader
from ipexctl.hugging_face import HubRepo, hf_home
from ipexctl.limits import OFFER_CLEANUP
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.hub_cache import HUB_CACHE, misplaced
from ipexctl.node.common.json_parser import JsonError
from ipexctl.node.files.hub import OfferRequest
from ipexctl.node.files.hub_download import HubDownloadRequest
from ipexctl.node.files.manifest import ManifestEntry, read_entries
from ipexctl.node.files.place import CONTENT
from ipexctl.node.files.replies import DownloadReply, SnapshotReply
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import BytesMoved, HostError, Notice, Watch, ignore_event
from ipexctl.remote.reply import MalformedReply, Reply
from ipexctl.remote.session import Session, StdinQueue
from ipexctl.remote.session_pool import SessionPool
from ipexctl.text import readable


@dataclass(frozen=True, slots=True)
class PushedRepo:
    word: str
    commit: str
    files: int
    bytes: int
    downloaded_bytes: int


@dataclass(frozen=True, slots=True)
class HubPushReport(PushReport):
    on: str = ""
    repos: tuple[PushedRepo, ...] = ()


@dataclass(frozen=True, slots=True)
class HubPushOptions:
    home: str
    on: str
    include: tuple[str, ...] = ()
    dry_run: bool = False
    iface: str | None = None
    timeout: float | None = None


def push_repos(
    repos: Sequence[HubRepo],
    access: HubAccess,
    hosts: Sequence[Host],
    pool: SessionPool,
    options: HubPushOptions,
    watch: Watch = ignore_event,
) -> HubPushReport:
    """Raises a UserError for a machine that is not a host of the call."""
    began = time.monotonic()
    words = _words(repos)
    cache = hf_home(options.home)
    results = {
        answer.host.name: answer for answer in gather_facts(hosts, pool, home=options.home, timeout=options.timeout)
    }
    facts: dict[str, Facts] = {name: found.facts for name, found in results.items() if found.facts is not None}
    on = ""
    try:
        downloader = find_downloader(options.on, access, hosts, facts, pool, options.home, watch)
        on = downloader.name
        entries, snapshots = _download(repos, access, downloader, pool, options, watch)
    except HostError as error:
        seconds = time.monotonic() - began
        named = HostError(f"{on}: {error.reason}", error.fix) if on else error
        failed = tuple(PushResult.of_error(host, named, seconds=seconds) for host in hosts)
        return HubPushReport(failed, seconds, words, cache, 0, 0, True, options.dry_run, on)
    manifest = Manifest.of([entry._replace(path=f"{HUB_CACHE}/{entry.path}") for entry in entries])
    source = PushSource(Path(hf_home(options.home)).expanduser(), False, manifest)
    others = [host for host in hosts if host != downloader.host]
    report = push(
        source,
        words,
        others,
        pool,
        PushOptions(cache, options.home, True, options.dry_run, options.iface, options.timeout, repos=words),
        watch,
        facts=facts,
        make_carrier=None
        if downloader.is_control
        else partial(_HubCarrier, downloader, manifest, hosts, facts, pool, options, watch),
    )
    pushed = tuple(
        PushedRepo(repo.word, found.commit, found.files, _size_of(found, entries), found.downloaded)
        for repo, found in zip(repos, snapshots, strict=True)
    )
    done = {result.host.name: result for result in report.hosts}
    if not downloader.is_control:
        done[downloader.host.name] = _own_result(downloader.host, pushed, cache, time.monotonic() - began)
    return HubPushReport(
        tuple(done[host.name] for host in hosts if host.name in done),
        time.monotonic() - began,
        words,
        cache,
        sum(repo.files for repo in pushed),
        manifest.size,
        True,
        options.dry_run,
        downloader.name,
        pushed,
    )


def _own_result(host: Host, pushed: Sequence[PushedRepo], path: str, seconds: float) -> PushResult:
    downloaded = sum(repo.downloaded_bytes for repo in pushed)
    files = sum(repo.files for repo in pushed)
    if not downloaded:
        return PushResult(host, "ok", seconds=seconds, path=path, same=files)
    return PushResult(host, "changed", f"{readable(downloaded)} from the hub", seconds=seconds, path=path)


def _size_of(snapshot: SnapshotReply, entries: Sequence[ManifestEntry]) -> int:
    return sum(
        entry.size for entry in entries if entry.kind == "f" and entry.path.startswith(f"{snapshot.folder}/blobs/")
    )


def _download(
    repos: Sequence[HubRepo],
    access: HubAccess,
    downloader: Downloader,
    pool: SessionPool,
    options: HubPushOptions,
    watch: Watch,
) -> tuple[list[ManifestEntry], tuple[SnapshotReply, ...]]:
    request: HubDownloadRequest = {
        "home": options.home,
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
        pool.session(downloader.host),
        "files.hub_download",
        "download",
        request,
        python=downloader.python,
        label="download from the hub",
        on_event=on_event,
        timeout=options.timeout,
        cancel=pool.cancel,
    )
    snapshots = reply.decode(DownloadReply).snapshots
    if [found.folder for found in snapshots] != folders:
        raise MalformedReply("it names other repositories", str(dict(reply))[:200])
    return [entry for found in snapshots for entry in _read_entries(found.folder, found.entries)], snapshots


def _words(repos: Sequence[HubRepo]) -> str:
    return " ".join(repo.word for repo in repos)


def _read_entries(folder: str, text: str) -> list[ManifestEntry]:
    try:
        entries = read_entries(text.encode())
    except (AgentError, JsonError, TypeError, ValueError) as error:
        raise MalformedReply(str(error), text[:200]) from None
    if wrong := misplaced(entries, folder):
        raise MalformedReply("a file does not belong in a hub cache", wrong)
    return entries


class _HubCarrier:
    parcels: Sequence[str] = ()

    def __init__(
        self,
        downloader: Downloader,
        manifest: Manifest,
        hosts: Sequence[Host],
        facts: dict[str, Facts],
        pool: SessionPool,
        options: HubPushOptions,
        watch: Watch,
        locations: Mapping[str, StoreLocation],
        needs: Mapping[str, frozenset[str]],
    ) -> None:
        self.sent: dict[str, int] = {}
        self._downloader, self._manifest, self._hosts, self._facts = downloader, manifest, hosts, facts
        self._pool, self._options, self._watch = pool, options, watch
        self._locations, self._needs = locations, needs
        needed = sorted(frozenset().union(*needs.values()))
        self._files = [StoredFile(sha256, CONTENT, manifest.files[sha256].size) for sha256 in needed]
        self._exit_stack = ExitStack()

    def __enter__(self) -> _HubCarrier:
        source = self._offer()
        try:
            self._distributor = self._exit_stack.enter_context(
                Distributor(self._pool, source, self._files, on_progress=self._moved)
            )
        except BaseException:
            self._exit_stack.close()
            raise
        return self

    def _offer(self) -> StoreLocation:
        host, options = self._downloader.host, self._options
        wanted = UploadOptions(options.home, options.iface, options.timeout)
        addresses = addresses_for_transfer(self._hosts, self._pool, self._facts, wanted, self._watch)
        self._locations = {
            name: replace(location, address=addresses.get(name)) for name, location in self._locations.items()
        }
        under = f"{HUB_CACHE}/"
        request: OfferRequest = {
            "home": self._options.home,
            "files": [
                [file.sha256, self._manifest.files[file.sha256].path.removeprefix(under)] for file in self._files
            ],
        }
        stdin: StdinQueue = StdinQueue()
        offered: Future[str] = Future()
        ended = run_in_background(partial(self._keep_offer, request, stdin, offered), "offer")
        self._exit_stack.callback(futures.wait, [ended], OFFER_CLEANUP)
        self._exit_stack.callback(stdin.end)
        return StoreLocation(host, self._downloader.python, offered.result(), addresses.get(host.name), is_guarded=True)

    def _keep_offer(self, request: OfferRequest, stdin: StdinQueue, offered: Future[str]) -> None:

        def on_event(event: Reply) -> None:
            if event.get("event") == "offered" and not offered.done():
                offered.set_result(event.text("store"))

        error = HostError("its store of files for other hosts has ended")
        try:
            session = self._pool.session(self._downloader.host)
            call(session, "files.hub", "offer", request, stdin=stdin, on_event=on_event, cancel=self._pool.cancel)
        except HostError as caught:
            error = caught
        finally:
            if not offered.done():
                offered.set_exception(error)

    def _moved(self, target: Host, done: int, total: int | None) -> None:
        self._watch(BytesMoved(target.name, "receiving", done, total))

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def bring(self, host: Host, session: Session) -> object:
        blobs = [file for file in self._files if file.sha256 in self._needs[host.name]]
        route = self._distributor.bring(self._locations[host.name], session, timeout=self._options.timeout, files=blobs)
        if route == "here":
            self.sent[host.name] = sum(blob.size or 0 for blob in blobs)
        return route

    def failure_on(self, host: Host, error: HostError) -> HostError:
        del host
        return HostError(f"{self._downloader.name}, which sends the files on, failed: {error.reason}", error.fix)
