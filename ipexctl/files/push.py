"""`ipexctl push`: a file or directory to the same path of every host, even hosts without ipexctl.

Each host compares first (`node/files/push.py`); without `force`, one with differing files is refused and gets nothing.
A `Carrier` brings what the others lack: local files travel as in a large sync (`upload.py`), a hub's are on a host
(`hub/push_from_hub.py`). A cut-off push keeps what has arrived; the next one resumes it. Files get their names when a
host has all. Of hosts that share the directory, the first writes.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ipexctl.facts.facts import Facts
from ipexctl.files.push_source import PushSource
from ipexctl.files.store_client import StoreLocation
from ipexctl.files.upload import Uploader, UploadOptions, addresses_for_transfer
from ipexctl.hosts.host import Host, find_leaders
from ipexctl.node.files.push import InspectRequest, PlaceRequest
from ipexctl.node.files.replies import InspectReply, PlaceReply
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import BytesMoved, HostError, HostResult, Report, Watch, ignore_event
from ipexctl.remote.reply import MalformedReply, Reply
from ipexctl.remote.session import Session
from ipexctl.remote.session_pool import SessionPool
from ipexctl.text import counted

STORE: Final = "store"
_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class PushResult(HostResult):
    """One host. Lists of names are cut at twenty."""

    path: str | None = None
    files_sent: int = 0
    """Files and links written (dry_run: to write). For a hub: files of its repositories."""
    sent_bytes: int = 0
    """From this machine to that host, without transfers between hosts."""
    same: int = 0
    differing: tuple[str, ...] = ()
    """Existing files with other content: refused, or replaced with --force."""
    replaced: int = 0
    refused: bool = False
    would_send: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PushReport(Report[PushResult]):
    source: str
    path: str
    files: int
    size: int
    force: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PushOptions:
    path: str
    home: str
    """ipexctl's own directory on the hosts, where no data may go."""
    force: bool = False
    dry_run: bool = False
    iface: str | None = None
    timeout: float | None = None
    repos: str = ""
    """Set for a hub: the path is its cache's, below the home."""


class Carrier(Protocol):
    sent: dict[str, int]

    def __enter__(self) -> Carrier: ...

    def __exit__(self, *_: object) -> None: ...

    def bring(self, host: Host, session: Session) -> object: ...

    @property
    def parcels(self) -> Sequence[str]: ...  # hashes of files that contain several

    def failure_on(self, host: Host, error: HostError) -> HostError: ...


MakeCarrier = Callable[["Mapping[str, StoreLocation]", "Mapping[str, frozenset[str]]"], Carrier]


def push(
    source: PushSource,
    name: str,
    hosts: Sequence[Host],
    pool: SessionPool,
    options: PushOptions,
    watch: Watch = ignore_event,
    *,
    facts: dict[str, Facts] | None = None,
    make_carrier: MakeCarrier | None = None,
) -> PushReport:
    """`name`: SRC, for the report. `facts`: known facts. `make_carrier`: for a SRC that is elsewhere."""
    return _Push(source, name, hosts, pool, options, watch, facts or {}, make_carrier).run()


class _Push:
    def __init__(
        self,
        source: PushSource,
        name: str,
        hosts: Sequence[Host],
        pool: SessionPool,
        options: PushOptions,
        watch: Watch,
        facts: dict[str, Facts],
        make_carrier: MakeCarrier | None,
    ) -> None:
        self._facts, self._make_carrier = facts, make_carrier or self._uploader
        self._source, self._name, self._hosts, self._pool = source, name, tuple(hosts), pool
        self._options, self._watch = options, watch
        self._found: dict[str, InspectReply] = {}
        self._done: dict[str, PushResult] = {}
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def run(self) -> PushReport:
        for done in self._pool.each(self._hosts, self._inspect):
            if done.error is not None:
                self._fail(done.host, done.error)
            elif done.result is not None:
                self._found[done.host.name] = done.result
        waiting = [host for host in self._hosts if host.name in self._found and not self._is_decided(host)]
        if waiting and not self._options.dry_run:
            leaders = find_leaders(waiting, lambda host: self._found[host.name].token)
            self._send([host for host in waiting if leaders[host] is host])
            followers = [host for host in waiting if leaders[host] is not host]
            for looked in self._pool.each(followers, self._look_again):
                self._end_follower(looked.host, leaders[looked.host], looked.error)
        manifest = self._source.manifest
        results = tuple(self._done[host.name] for host in self._hosts if host.name in self._done)
        return PushReport(
            results,
            self._seconds,
            self._name,
            self._options.path,
            manifest.count,
            manifest.size,
            self._options.force,
            self._options.dry_run,
        )

    def _inspect(self, host: Host, session: Session, *, quick: bool = False) -> InspectReply:
        packed = self._source.manifest.packed
        request: InspectRequest = {
            "path": self._options.path,
            "home": self._options.home,
            "manifest": len(packed),
            "is_file": self._source.is_file,
            "repos": self._options.repos,
            "force": self._options.force,
            "dry_run": self._options.dry_run,
            "quick": quick,
        }

        def on_event(event: Reply) -> None:
            if event.get("event") == "progress":
                self._watch(BytesMoved(host.name, "comparing", event.integer("done"), event.integer_or_none("total")))

        reply = call(
            session,
            "files.push",
            "inspect",
            request,
            label=f"look at {self._options.path}",
            stdin=io.BytesIO(packed),
            on_event=on_event,
            timeout=self._options.timeout,
            cancel=self._pool.cancel,
        )
        found = reply.decode(InspectReply)
        if not set(found.need) <= set(self._source.manifest.files):
            raise MalformedReply("it needs files that are not to be sent", str(dict(reply))[:200])
        return found

    def _is_decided(self, host: Host) -> bool:
        found = self._found[host.name]
        base = PushResult(
            host, "ok", path=found.path, same=found.same, differing=found.differing, replaced=found.differing_count
        )
        if found.blocked_count:
            names = _listed(found.blocked, found.blocked_count, found.path)
            reason = f"a directory or a link stands where a file is to be, or the other way round: {names}"
            fix = "nothing was sent to it; look at it there and move it away, or name another path"
            base = replace(base, status="failed", reason=reason, fix=fix, replaced=0, refused=True)
        elif found.differing_count and not self._options.force:
            names = _listed(found.differing, found.differing_count, found.path)
            here = "there is other content" if found.differing == ("",) else f"other content is in {names}"
            reason = f"{found.path} is there: {here}"
            fix = "nothing was sent to it; to replace what differs: --force"
            base = replace(base, status="failed", reason=reason, fix=fix, replaced=0, refused=True)
        elif not found.is_complete and self._options.dry_run:
            base = replace(base, status="changed", files_sent=found.lacking, would_send=found.names)
            base = replace(base, reason=self._reason_without_files(found))
        elif not found.is_complete:
            return False
        self._done[host.name] = replace(base, seconds=self._seconds)
        return True

    def _send(self, hosts: Sequence[Host]) -> None:
        needs = {host.name: frozenset(self._found[host.name].need) for host in hosts}
        ordered = sorted(
            hosts, key=lambda host: -len(needs[host.name])
        )  # the first one sends the others what they need
        if not any(needs.values()):
            self._place_on(hosts, None)
            return
        carrier = self._make_carrier(self._locations(ordered), needs)
        try:
            with carrier:
                arrived = []
                for done in self._pool.each(ordered, carrier.bring):
                    if done.error is not None:
                        self._fail(done.host, done.error)
                    else:
                        arrived.append(done.host)
                self._place_on(arrived, carrier)
        except HostError as error:
            for host in hosts:
                self._fail(host, carrier.failure_on(host, error))

    def _uploader(self, locations: Mapping[str, StoreLocation], needs: Mapping[str, frozenset[str]]) -> Carrier:
        contents = [self._source.entry_of(sha256) for sha256 in sorted(frozenset().union(*needs.values()))]
        timeout = self._options.timeout
        return Uploader(self._source.root, contents, locations, self._pool, self._watch, timeout, needs=needs)

    def _locations(self, hosts: Sequence[Host]) -> dict[str, StoreLocation]:
        options, found = self._options, self._found
        wanted = UploadOptions(options.home, options.iface, options.timeout)
        addresses = self._addresses(hosts, wanted)
        return {
            host.name: StoreLocation(
                host,
                found[host.name].python,
                f"{found[host.name].directory}/{STORE}",
                addresses.get(host.name),
                is_guarded=True,
            )
            for host in hosts
        }

    def _addresses(self, hosts: Sequence[Host], wanted: UploadOptions) -> Mapping[str, str]:
        if len(hosts) == 1:
            return {}
        return addresses_for_transfer(hosts, self._pool, self._facts, wanted, self._watch)

    def _place_on(self, hosts: Sequence[Host], carrier: Carrier | None) -> None:
        def place(host: Host, session: Session) -> PushResult:
            found = self._found[host.name]
            request: PlaceRequest = {
                "path": found.path,
                "listed": found.listed,
                "force": self._options.force,
                "repos": self._options.repos,
                "parcels": list(carrier.parcels) if carrier is not None else [],
            }
            reply = call(
                session,
                "files.push",
                "place",
                request,
                python=found.python,
                label=f"put files into {found.path}",
                timeout=self._options.timeout,
                cancel=self._pool.cancel,
            )
            placed = reply.decode(PlaceReply).placed
            return PushResult(
                host,
                "changed",
                self._reason_without_files(found),
                seconds=self._seconds,
                path=found.path,
                files_sent=found.lacking if self._options.repos else placed,
                sent_bytes=carrier.sent.get(host.name, 0) if carrier is not None else 0,
                same=found.same,
                differing=found.differing,
                replaced=found.differing_count,
            )

        for done in self._pool.each(hosts, place):
            self._done[done.host.name] = done.result_or(
                lambda host, error: PushResult.of_error(host, error, seconds=self._seconds)
            )

    def _reason_without_files(self, found: InspectReply) -> str:
        return f"the name of a revision: {found.path}" if self._options.repos and not found.lacking else ""

    def _look_again(self, host: Host, session: Session) -> None:
        found = self._inspect(host, session, quick=True)
        self._found[host.name] = found
        if not found.is_complete:
            raise HostError("it sees the same directory as another host, and not the files there", "run it again")

    def _end_follower(self, host: Host, leader: Host, error: HostError | None) -> None:
        result = self._done[leader.name]
        if result.status in ("failed", "unreachable"):
            reason = f"{leader.name}, which writes the same directory, failed: {result.reason}"
            self._fail(host, HostError(reason, result.fix))
        elif error is not None:
            self._fail(host, error)
        else:
            self._done[host.name] = PushResult(
                host, "changed", f"it is the directory of {leader.name}", "", self._seconds, self._found[host.name].path
            )

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _fail(self, host: Host, error: HostError) -> None:
        self._done[host.name] = PushResult.of_error(host, error, seconds=self._seconds)


def _listed(names: Sequence[str], count: int, path: str) -> str:
    """`a.bin, b.bin and 3 more`; SRC itself has no name."""
    shown = ", ".join(name or path for name in names[:_NAMED])
    return f"{shown} and {counted(count - _NAMED, 'more file')}" if count > _NAMED else shown
