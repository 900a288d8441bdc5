"""Which host sends files to whom, for a push, a large sync and an installation.

One host has the files, or gets them from this machine. It sends them to the others over TCP, so this machine's uplink
carries each byte once. A target that has everything becomes a server too. A server has at most two clients, so that the
first targets finish soon and can serve; the source is used last. Without TCP the files pass through this machine, which
reads each once. A server is one channel of its host's ssh connection; both ends get the token on stdin.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple

from ipexctl.errors import Refusal, UserError, place_fix
from ipexctl.facts.facts import Facts, addresses_among
from ipexctl.files.store_client import (
    Damaged,
    Relay,
    StoreClient,
    StoredFile,
    StoreLocation,
    refuse_damaged,
    report_events,
    total_size,
)
from ipexctl.files.stream import NotInStore, explain_changed, stream_entries
from ipexctl.hosts.host import Host
from ipexctl.limits import PEER_SERVER_START
from ipexctl.node.common.files import encode_name
from ipexctl.node.files.call_types import ConnectRequest, ServeRequest
from ipexctl.node.files.file_stream import END
from ipexctl.node.files.manifest import ManifestEntry
from ipexctl.node.files.place import CONTENT, PARCEL
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.local import LocalSession
from ipexctl.remote.node_call import HeldCall
from ipexctl.remote.outcome import (
    BytesMoved,
    Cancelled,
    HostError,
    Notice,
    ProgressEvent,
    TimedOut,
    Unreachable,
    Watch,
    ignore_event,
)
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session

Route = Literal["there", "server", "here"]
"""Source of the files: present already, a host's server, or through the control machine."""

SEPARATE_SIZE: Final = 1_000_000
"""Smaller files go into one parcel."""
_MAX_CLIENTS: Final = 2
_GIVE_UP: Final = 2
"""Failed connections to the source in a row until no target tries any more."""
_SMALLEST_GROUP: Final = 64_000_000
_MOST_GROUPS: Final = 8
"""A group of files reaches the source while it sends the one before to the others."""
_SERVER_IDLE: Final = 900.0
_END_TIMEOUT: Final = 10.0


class PeerUnreachable(HostError):
    """The target could not connect to the server: no byte was transferred."""


class Delivery:
    """The files that one host lacks, whichever route they take."""

    def __init__(self, client: StoreClient, files: Sequence[StoredFile], watch: Watch) -> None:
        self.client = client
        self.need = tuple(files)
        """All files until the target has said what it lacks."""
        self.is_asked = self.had_all = False
        self._watch = watch
        self._total: int | None = None
        self._bytes_before = self._reported = 0

    def find_missing(self) -> None:
        self.set_missing(self.client.missing(self.need))

    def set_missing(self, need: tuple[StoredFile, ...]) -> None:
        self.need = need
        left = total_size(need)
        if not self.is_asked:
            self._total, self.is_asked, self.had_all = left, True, not need
        elif left is not None and self._total is not None:
            self._bytes_before = self._total - left

    def on_bytes(self, done: int) -> None:
        # A failed route may have stopped in the middle of a file, which the next route restarts.
        self._reported = max(self._reported, self._bytes_before + done)
        self._watch(BytesMoved(self.client.location.host.name, "receiving", self._reported, self._total))

    def finish(self) -> None:
        if self._total:
            self.on_bytes(self._total - self._bytes_before)


class Server:
    """Sends a host's files to other hosts. Starts with its first client."""

    def __init__(self, client: StoreClient, files: Sequence[StoredFile]) -> None:
        self.clients = 0
        self.failed = False
        self._client, self._files = client, [file.to_json() for file in files]
        self._token = secrets.token_hex(32)
        self._lock = threading.Lock()
        self.call: HeldCall[int] | None = None

    def send(self, delivery: Delivery) -> None:
        is_connected = False
        report = report_events(delivery.on_bytes)

        def on_event(event: Reply) -> None:
            nonlocal is_connected
            if event.get("event") == "lacking":
                lacking = set(event.texts("files"))
                delivery.set_missing(tuple(blob for blob in delivery.need if blob.sha256 in lacking))
            is_connected = is_connected or event.get("event") == "ready"
            report(event)

        address, location = self._client.location.address, delivery.client.location
        assert address is not None
        request: ConnectRequest = {
            "store": location.store,
            "files": [file.to_json() for file in delivery.need],
            "address": address,
            "port": self._port(address),
            "token": self._token,
        }
        try:
            reply = delivery.client.call("files.peer_transfer", "connect", request, on_event=on_event)
        except (Cancelled, TimedOut, Unreachable):
            raise
        except HostError as error:
            if is_connected or not delivery.is_asked:
                raise
            raise PeerUnreachable(error.reason, error.fix) from error
        refuse_damaged(reply, f"{self._client.location.host.name}'s copy is damaged")

    def _port(self, address: str) -> int:
        request: ServeRequest = {
            "store": self._client.location.store,
            "files": self._files,
            "bind": address,
            "token": self._token,
            "clients": 0,
            "addresses": [],
            "idle": _SERVER_IDLE,
        }

        serve = partial(self._client.call, "files.peer_transfer", "serve", request)
        with self._lock:
            self.call = self.call or HeldCall(serve, _port_of, "its server has ended")
        try:
            return self.call.value.result(PEER_SERVER_START)
        except futures.TimeoutError:
            raise PeerUnreachable(f"no server has started within {PEER_SERVER_START:g} s") from None
        except HostError as error:
            # Not Unreachable: the server's host is lost, not the target.
            raise PeerUnreachable(error.reason, error.fix) from error


def _port_of(event: Reply) -> int | None:
    return event.integer("port") if event.get("event") == "serving" else None


class Distributor:
    """Copies files from a source's store to others. `bring` is called from each target's own thread, many at once."""

    def __init__(
        self,
        pool: SessionPool,
        source: StoreLocation,
        files: Sequence[StoredFile],
        watch: Watch = ignore_event,
        *,
        timeout: float | None = None,
        local: Mapping[StoredFile, Path] | None = None,
    ) -> None:
        """`local`: the files on this machine, which the source gets first. `timeout` limits one route to a host."""
        self.sent: dict[str, int] = {}
        """Host → bytes from this machine."""
        self._pool, self._source, self.files, self._watch = pool, source, tuple(files), watch
        self._timeout, self._local = timeout, local
        self._held = ExitStack()
        self._lock = threading.Lock()
        self._relay: Relay | None = None
        self._damaged: tuple[StoredFile, ...] = ()
        self._servers: list[Server] = []
        """Servers of hosts with all files; the first is the source's."""
        self._changed = threading.Condition()
        self._failures = 0

    def __enter__(self) -> Distributor:
        return self

    def fill_source(self) -> None:
        """Send local files to the source."""
        if self._local is not None:
            delivery = self._delivery(self._source, self._pool.session(self._source.host), self.files)
            delivery.find_missing()
            if delivery.need:
                self._from_here(delivery)
            delivery.finish()

    def __exit__(self, *_: object) -> None:
        futures.wait([server.call.end() for server in self._servers if server.call is not None], _END_TIMEOUT)
        self._held.close()

    def _delivery(self, target: StoreLocation, session: Session, files: Sequence[StoredFile]) -> Delivery:
        return Delivery(StoreClient(target, session, self._pool.cancel, self._timeout), files, self._watch)

    def bring(self, target: StoreLocation, session: Session, files: Sequence[StoredFile] | None = None) -> Route:
        """Copy the files that the target lacks; returns the route.

        `files`: those the target needs (default: all). Raises a HostError naming every route tried.
        """
        if (target.host, target.store) == (self._source.host, self._source.store):
            return "there"
        wanted = self.files if files is None else tuple(files)
        if not wanted:
            return "there"
        delivery = self._delivery(target, session, wanted)
        if not self._source.address:
            delivery.find_missing()
            if delivery.had_all:
                return "there"
        failures: dict[str, str] = {}
        fix = ""
        for route, name, transfer in self._routes():
            try:
                transfer(delivery)
            except (Cancelled, TimedOut):
                raise
            except HostError as error:
                failures[name] = error.reason
                fix = error.fix
                delivery.find_missing()
                if delivery.need:
                    self._check_source(error)
                    continue
            delivery.finish()
            if self._servers and target.address and wanted == self.files:
                self._add_server(delivery.client)  # it has all files now, and can serve others
            return "there" if delivery.had_all else route
        if len(reasons := set(failures.values())) == 1:
            raise HostError(reasons.pop(), fix)
        raise HostError("; ".join(f"{name}: {reason}" for name, reason in failures.items()), fix)

    def _routes(self) -> Iterator[tuple[Route, str, Callable[[Delivery], None]]]:
        if self._source.address:
            yield "server", f"from {self._source.host.name}'s server", self._from_server
        yield "here", "through this machine", self._from_here

    def _add_server(self, client: StoreClient) -> None:
        with self._changed:
            self._servers.append(Server(client._replace(timeout=None), self.files))
            self._changed.notify_all()

    def _from_server(self, delivery: Delivery) -> None:
        """Send from a free server. If one other than the source fails, use the source."""
        with self._lock:
            if not self._servers:
                with self._open_source() as source:
                    self._add_server(source)
        only_source = False
        while True:
            server = self._take(only_source)
            is_source = server is self._servers[0]
            try:
                server.send(delivery)
            except (Cancelled, TimedOut, Unreachable):
                raise
            except HostError as error:
                # Any other error may be the client's fault.
                server.failed = server.failed or isinstance(error, (PeerUnreachable, Damaged))
                if is_source:
                    self._failures += isinstance(error, PeerUnreachable)
                    raise
                only_source = True
            else:
                self._failures = 0 if is_source and not delivery.had_all else self._failures
                return
            finally:
                with self._changed:
                    server.clients -= 1
                    self._changed.notify_all()

    def _take(self, only_source: bool) -> Server:
        with self._changed:
            while True:
                if self._pool.cancel.thrown:
                    raise Cancelled("stopped")
                others = [] if only_source else [server for server in self._servers[1:] if not server.failed]
                if not others and self._failures >= _GIVE_UP:
                    raise HostError("other hosts didn't reach it either")
                # Of the servers with the fewest clients, the latest: the source is used last.
                server = min([*reversed(others), self._servers[0]], key=lambda server: server.clients)
                # After a failed connection, the next target waits for those that are still trying.
                max_clients = 1 if self._failures and server is self._servers[0] else _MAX_CLIENTS
                if server.clients < max_clients:
                    server.clients += 1
                    return server
                self._changed.wait(0.2)

    def _from_here(self, delivery: Delivery) -> None:
        need, client = delivery.need, delivery.client
        try:
            client.push(self._local_files(need), expected=need, on_bytes=delivery.on_bytes)
        except Damaged as damaged:
            changed = [path for file, path in (self._local or {}).items() if file.sha256 == damaged.sha256]
            raise explain_changed(changed[0]) if changed else damaged from None
        if not isinstance(client.session, LocalSession):
            self.sent[client.location.host.name] = total_size(need) or 0

    def _local_files(self, files: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, Path]]:
        if self._local is not None:
            return ((file, self._local[file]) for file in files)
        with self._open_source() as source:
            if isinstance(source.session, LocalSession):
                return ((file, Path(self._source.store, file.sha256, file.name)) for file in files)
        with self._lock:
            if self._relay is None:
                self._relay = self._held.enter_context(Relay(self._open_source, self._pool.cancel))
        return self._relay.files(files)

    @contextmanager
    def _open_source(self) -> Iterator[StoreClient]:
        """Losing the source's connection is the source's error: the target is not unreachable."""
        try:
            yield StoreClient(self._source, self._pool.session(self._source.host), self._pool.cancel)
        except Unreachable as error:
            raise HostError(f"{self._source.host.name}: {error.reason}", error.fix) from None

    def _check_source(self, error: HostError) -> None:
        """Remove damaged files there, so that the next command gets them again. Other transfers then miss them."""
        with self._lock:
            if isinstance(error, Damaged):
                with self._open_source() as source:
                    self._damaged = source.missing(self.files, verify=True)
            if self._damaged:
                names = ", ".join(file.name for file in self._damaged)
                name = self._source.host.name
                raise HostError(f"{name}'s copy of {names} was damaged, and was removed there", "run it again")


class TransferOptions(NamedTuple):
    home: str
    iface: str | None
    timeout: float | None
    facts: dict[str, Facts]
    """Known facts. A transfer between hosts completes them."""


class FileTransfer:
    """Brings to each host's store the contents it needs. One host has them first, and sends them on."""

    def __init__(
        self,
        stores: Iterable[StoreLocation],
        needs: Mapping[str, Collection[str]],
        pool: SessionPool,
        options: TransferOptions,
        watch: Watch,
        sender: Host | None = None,
    ) -> None:
        """`stores`: one host of each home. `needs`: host → hashes. `sender`: a host that has all; else the host that
        lacks most gets them first."""
        self.sent: dict[str, int] = {}
        self.parcels: tuple[str, ...] = ()
        """Hashes of files that contain several."""
        self.pool, self.options, self.watch = pool, options, watch
        self._needs = needs
        self.contents = sorted(set[str]().union(*needs.values()))
        ordered = sorted(stores, key=lambda store: -len(needs[store.host.name]))
        self._hosts = [store.host for store in ordered]
        self.source, self._has_sender = sender or self._hosts[0], sender is not None
        self._ordered = ordered

    @cached_property
    def stores(self) -> Mapping[str, StoreLocation]:
        return {store.host.name: replace(store, address=self.addresses.get(store.host.name)) for store in self._ordered}

    @cached_property
    def addresses(self) -> Mapping[str, str]:
        """Host → address for other hosts; empty if files go through this machine."""
        options, hosts = self.options, list(dict.fromkeys([self.source, *self._hosts]))
        if len(hosts) == 1:
            return {}
        if unknown := [host for host in hosts if host.name not in options.facts]:
            from ipexctl.facts.gather import gather_facts  # slow to import, and seldom needed

            answers = gather_facts(unknown, self.pool, home=options.home, timeout=options.timeout)
            options.facts.update({answer.host.name: answer.facts for answer in answers if answer.facts is not None})
        found = addresses_among(hosts, options.facts, options.iface)
        if isinstance(found, Refusal):
            self.watch(Notice(f"files go through this machine: {found.reason}. {found.fix}"))
            return {}
        return found

    def bring_all(self, origin: Origin, fail: Callable[[Host, HostError], None]) -> list[Host]:
        """Return the hosts that have everything; `fail` gets the others. If the source fails, another host takes its
        place."""
        while self.contents and self._hosts:
            try:
                with ExitStack() as held:
                    self._bring_groups(origin(self, held), held, fail)
                break
            except HostError as error:
                is_here = isinstance(error, (Cancelled, NotInStore, Damaged))
                for host in tuple(self._hosts) if is_here or self._has_sender else (self.source,):
                    reason = f"{self.source.name}, which sends the files on, failed: {error.reason}"
                    self._hosts.remove(host)
                    fail(host, error if is_here or host == self.source else HostError(reason, error.fix))
                self.source = self._hosts[0] if self._hosts else self.source
        return self._hosts

    def _bring_groups(
        self, groups: Sequence[Distributor], held: ExitStack, fail: Callable[[Host, HostError], None]
    ) -> None:
        files = [file for group in groups for file in group.files]
        self.parcels = tuple(file.sha256 for file in files if file.name == PARCEL)
        for group in held.enter_context(closing(_filled(groups))):
            with group:
                self._bring(group, fail)
            for name, size in group.sent.items():
                self.sent[name] = self.sent.get(name, 0) + size
            if not self._hosts:
                break

    def _bring(self, group: Distributor, fail: Callable[[Host, HostError], None]) -> None:
        def bring(host: Host, session: Session) -> Route:
            return group.bring(self.stores[host.name], session, self._wanted(host.name, group.files))

        for done in self.pool.each(tuple(self._hosts), bring):
            if done.error is not None:
                self._hosts.remove(done.host)
                fail(done.host, done.error)

    def _wanted(self, host: str, files: Sequence[StoredFile]) -> Sequence[StoredFile]:
        wanted = {*self._needs[host], *self.parcels}
        return [file for file in files if file.sha256 in wanted]

    def watch_group(self, before: Sequence[StoredFile], files: Sequence[StoredFile]) -> Watch:
        """Count the bytes of a group as part of all files. `before`: those of earlier groups."""

        def watch(event: ProgressEvent) -> None:
            if isinstance(event, BytesMoved):
                is_source = event.host == self.source.name
                done, total = (
                    total_size(part if is_source else self._wanted(event.host, part)) for part in (before, files)
                )
                event = replace(event, done=event.done + (done or 0), total=total)
            self.watch(event)

        return watch


def _filled(groups: Sequence[Distributor]) -> Generator[Distributor, None, None]:
    """Each group once its source has it. The source gets the next one while the caller distributes a group."""
    filling = run_in_background(groups[0].fill_source, "fill")
    try:
        for group, following in zip_longest(groups, groups[1:]):
            filling.result()
            if following is not None:
                filling = run_in_background(following.fill_source, "fill")
            yield group
    finally:
        futures.wait([filling])


def split(files: Sequence[StoredFile]) -> list[list[StoredFile]]:
    least = max(_SMALLEST_GROUP, (total_size(files) or 0) / _MOST_GROUPS)
    groups: list[list[StoredFile]] = [[]]
    for file in files:
        if (total_size(groups[-1]) or 0) >= least:
            groups.append([])
        groups[-1].append(file)
    return groups


def _open_temporary(held: ExitStack) -> tuple[IO[bytes], Path]:
    """A file to write, and its path. On Linux it has no name, so that a killed call leaves nothing."""
    if os.path.isdir("/proc/self/fd"):
        file = held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        return file, Path(f"/proc/self/fd/{file.fileno()}")
    path = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="ipexctl-")), "parcel")
    return held.enter_context(path.open("wb")), path


Origin = Callable[[FileTransfer, ExitStack], Sequence[Distributor]]
"""Makes the distributors of a transfer's files, of one group each. What it enters in the stack lasts as long as the
transfer."""


def local_files(root: Path, entry_of: Callable[[str], ManifestEntry], *, in_groups: bool) -> Origin:
    """Files of this machine: small ones in one parcel, larger ones by their own hash.

    `in_groups`: the hosts send a group on while the next one arrives. They must have been asked for room for all.
    They arrive in the stage of a tree or a push (`node/files/place.py`), where a repeated call finds them.
    """
    base = os.fsencode(root)

    def path_of(entry: ManifestEntry) -> Path:
        return Path(os.fsdecode(os.path.join(base, encode_name(entry.path))))

    def pack(held: ExitStack, small: Sequence[ManifestEntry]) -> tuple[StoredFile, Path]:
        digest = hashlib.sha256()
        try:
            file, parcel = _open_temporary(held)
            for data in chain(stream_entries(base, small), (END,)):
                digest.update(data)
                file.write(data)
            file.flush()
        except OSError as error:
            raise UserError(
                f"files can't be packed in {tempfile.gettempdir()}: {error.strerror or error}",
                fix=place_fix(error, "set TMPDIR to another directory"),
            ) from None
        return StoredFile(digest.hexdigest(), PARCEL, parcel.stat().st_size), parcel

    def send(transfer: FileTransfer, held: ExitStack) -> list[Distributor]:
        contents = [entry_of(sha256) for sha256 in transfer.contents]
        large = [entry for entry in contents if entry.size >= SEPARATE_SIZE]
        small = [entry for entry in contents if entry.size < SEPARATE_SIZE]
        local = {StoredFile(entry.content, CONTENT, entry.size): path_of(entry) for entry in large}
        if small:
            local.update([pack(held, small)])
        source, timeout = transfer.stores[transfer.source.name], transfer.options.timeout
        files, made = list(local), []
        for group in split(files) if in_groups and source.address else [files]:
            before = files[: files.index(group[0])]
            watch = transfer.watch_group(before, files)
            made.append(Distributor(transfer.pool, source, group, watch, timeout=timeout, local=local))
        return made

    return send
