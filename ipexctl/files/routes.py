"""Decide which host sends files to whom, for a push, a large sync and an installation.

- One host, the source, has the files or gets them from this machine. It sends them to the others over TCP, so the link
  of this machine carries each byte once.
- A target that has everything becomes a server, too. A server has at most two clients, so that the first targets
  finish soon and can serve; the source is used last.
- If hosts cannot connect to each other, or a transfer between them fails, files pass through this machine, which reads
  each file once.

A server is a call of the agent on its host; server and client get the token for their connection on stdin.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from ipexctl.files.store_client import (
    DamagedFile,
    LostClaim,
    Relay,
    StoreClient,
    StoredFile,
    StoreLocation,
    refuse_damaged,
    report_events,
    total_size,
)
from ipexctl.files.stream import explain_changed
from ipexctl.limits import PEER_SERVER_START
from ipexctl.node.common.json_records import decode_port
from ipexctl.node.files.call_requests import ConnectRequest, ServeRequest
from ipexctl.remote.connector import SessionPool
from ipexctl.remote.local import LocalSession
from ipexctl.remote.node_call import HeldCall
from ipexctl.remote.outcome import (
    BytesMoved,
    Cancelled,
    HostError,
    TimedOut,
    Unreachable,
    Watch,
    ignore_event,
)
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session

Route = Literal["there", "server", "here"]
"""How a target got its files: it had all of them, from a host's server, or through this machine."""

_MAX_CLIENTS: Final = 2
_GIVE_UP: Final = 2
"""Failed connections to the source in a row until no target tries any more."""
_SERVER_IDLE: Final = 900.0
"""A server without a client ends after this many seconds."""
_END_TIMEOUT: Final = 10.0
"""Seconds to wait for the servers at the end."""


class PeerUnreachable(HostError):
    """Raised if the target could not connect to the server: no byte was transferred."""


class Delivery:
    """The files that one host lacks, and how many of their bytes have arrived, over all routes that were tried."""

    def __init__(self, client: StoreClient, files: Sequence[StoredFile], watch: Watch) -> None:
        self.client = client
        self.need = tuple(files)
        """Files that the target lacks; all files until it has said what it lacks."""
        self.is_asked = self.had_all = False
        """True once the target has said what it lacks; true if it lacked nothing then."""
        self._watch = watch
        self._total: int | None = None
        """Bytes that the target lacked at first; None if a size is unknown."""
        self._bytes_before = self._reported = 0
        """Bytes that earlier routes brought, and bytes in the last report."""

    def find_missing(self) -> None:
        """Ask the target what it still lacks, after a route has failed."""
        self._set_missing(self.client.missing(self.need))

    def on_lacking(self, event: Reply) -> None:
        """Read what the target lacks, with the bytes that it has of each file, from its answer to a transfer."""
        have = event.record("files")
        self._set_missing(
            tuple(replace(file, have=have.integer(file.sha256)) for file in self.need if file.sha256 in have)
        )

    def _set_missing(self, need: tuple[StoredFile, ...]) -> None:
        """Note what the target lacks now, and how many bytes have arrived since its first answer."""
        self.need = need
        left = total_size(need)
        if not self.is_asked:
            self._total, self.is_asked, self.had_all = left, True, not need
        elif left is not None and self._total is not None:
            self._bytes_before = self._total - left

    def on_bytes(self, done: int) -> None:
        """Report the progress of the present route. The number never goes down."""
        # A failed route may have stopped in the middle of a file, which the next route restarts.
        self._reported = max(self._reported, self._bytes_before + done)
        self._watch(BytesMoved(self.client.location.host.name, "receiving", self._reported, self._total))

    def finish(self) -> None:
        """Report that all has arrived."""
        if self._total:
            self.on_bytes(self._total - self._bytes_before)


class Server:
    """Sends a host's files to other hosts. The program on the host starts with its first client."""

    def __init__(self, client: StoreClient, files: Sequence[StoredFile]) -> None:
        self.clients = 0
        """Targets that receive from it now; changed by the `Distributor`."""
        self.failed = False
        """True if the server could not be reached or has a damaged file. It gets no more targets, unless it is the
        source's server."""
        self._client, self._files = client, [file.to_json() for file in files]
        self._token = secrets.token_hex(32)
        self._lock = threading.Lock()
        self.call: HeldCall[int] | None = None
        """The call that runs the program, and its port; None before the first client."""

    def send(self, delivery: Delivery) -> None:
        """Let the target receive what it lacks from this server.

        Raises a PeerUnreachable if it cannot connect, a DamagedFile if a file of the server is damaged, and any other
        HostError if the transfer breaks off.
        """
        is_connected = False
        report = report_events(delivery.on_bytes)

        def on_event(event: Reply) -> None:
            nonlocal is_connected
            if event.get("event") == "lacking":
                delivery.on_lacking(event)
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
        """Return the server's port; start the server if it does not run. Raises a PeerUnreachable if it can't start."""
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
    """Return the port in the event `serving`; None for any other event."""
    if event.get("event") != "serving":
        return None
    try:
        return decode_port(event["port"])
    except ValueError as error:
        raise event.error(str(error)) from None


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
        """Distribute nothing yet. `source`: store of the host that has the files, or gets them first.

        `timeout`: seconds for one route to a host; None for no limit. `local`: file → its path on this machine, from
        where `fill_source` sends it; None if the source has the files.
        """
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
        """Guards the servers and their clients; notified when one of them changes."""
        self._failures = 0
        """Failed connections to the source in a row."""

    def __enter__(self) -> Distributor:
        return self

    def fill_source(self) -> None:
        """Send local files to the source."""
        if self._local is not None:
            delivery = self._delivery(self._source, self._pool.session(self._source.host), self.files)
            self._from_here(delivery)
            delivery.finish()

    def __exit__(self, *_: object) -> None:
        futures.wait([server.call.end() for server in self._servers if server.call is not None], _END_TIMEOUT)
        self._held.close()

    def _delivery(self, target: StoreLocation, session: Session, files: Sequence[StoredFile]) -> Delivery:
        return Delivery(StoreClient(target, session, self._timeout), files, self._watch)

    def bring(self, target: StoreLocation, session: Session, files: Sequence[StoredFile] | None = None) -> Route:
        """Copy the files that the target lacks, and return the route.

        `files`: those the target needs; None for all. Raises a HostError that names every route and why it failed.
        """
        if (target.host, target.store) == (self._source.host, self._source.store):
            return "there"
        wanted = self.files if files is None else tuple(files)
        if not wanted:
            return "there"
        delivery = self._delivery(target, session, wanted)
        failures: dict[str, str] = {}
        fix = ""
        for route, name, transfer in self._routes():
            try:
                transfer(delivery)
            except Cancelled:
                raise
            except HostError as error:
                if isinstance(error, TimedOut) and route == "here":
                    raise
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
        """Yield the routes in the order in which they are tried: name, text for an error, and what takes it."""
        if self._source.address:
            yield "server", f"from {self._source.host.name}'s server", self._from_server
        yield "here", "through this machine", self._from_here

    def _add_server(self, client: StoreClient) -> None:
        with self._changed:
            self._servers.append(Server(client._replace(timeout=None), self.files))
            self._changed.notify_all()

    def _from_server(self, delivery: Delivery) -> None:
        """Send from a free server. If one other than the source fails, wait for the source and send from there."""
        with self._lock:
            if not self._servers:
                with self._open_source() as source:
                    self._add_server(source)
        only_source = False
        while True:
            server = self._take_server(only_source=only_source)
            is_source = server is self._servers[0]
            try:
                server.send(delivery)
            except (Cancelled, Unreachable):
                raise
            except HostError as error:
                # Any other error, such as no byte for the time allowed, may be the client's fault.
                server.failed = server.failed or isinstance(error, (PeerUnreachable, DamagedFile))
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

    def _take_server(self, *, only_source: bool) -> Server:
        """Wait until a server may have one more client, and count this one.

        Raises a HostError if so many targets did not reach the source that no further one need try, and a Cancelled if
        the call is stopped.
        """
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

    def _from_here(self, delivery: Delivery, claims: int = 3) -> None:
        """Send from this machine: local files, or files of the source that pass through.

        `claims`: how often to try if another process takes over what an earlier transfer left on the target.
        """
        client = delivery.client

        def files() -> Iterator[tuple[StoredFile, Path]]:
            yield from self._local_files(delivery.need)

        try:
            client.push(files(), expected=delivery.need, on_lacking=delivery.on_lacking, on_bytes=delivery.on_bytes)
        except LostClaim:
            if claims == 1:
                raise
            self._from_here(delivery, claims - 1)
        except DamagedFile as damaged:
            changed = [path for file, path in (self._local or {}).items() if file.sha256 == damaged.sha256]
            raise explain_changed(changed[0]) if changed else damaged from None
        if not isinstance(client.session, LocalSession):
            self.sent[client.location.host.name] = total_size(delivery.need) or 0

    def _local_files(self, files: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, Path]]:
        """Return each file with its path on this machine; files of another host become available as they arrive."""
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
        """Yield the source's store. A lost connection to the source becomes a HostError that names it.

        An Unreachable would be taken for the target's.
        """
        try:
            yield StoreClient(self._source, self._pool.session(self._source.host))
        except Unreachable as error:
            raise HostError(f"{self._source.host.name}: {error.reason}", error.fix) from None

    def _check_source(self, error: HostError) -> None:
        """After a failed route, refuse to go on if the source has a damaged file.

        Damaged files are removed from the source's store, so that the next command gets them again. Other transfers of
        this call then fail because those files are gone, so the damage is remembered for them.
        """
        with self._lock:
            if isinstance(error, DamagedFile):
                with self._open_source() as source:
                    self._damaged = source.missing(self.files, verify=True)
            if self._damaged:
                names = ", ".join(file.name for file in self._damaged)
                name = self._source.host.name
                raise HostError(f"{name}'s copy of {names} was damaged, and was removed there", "run it again")
