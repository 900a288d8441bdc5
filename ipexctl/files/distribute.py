"""Copies files from one host's store to all others, over TCP, so the control machine's uplink carries nothing.

Without TCP the control machine reads each file once over the open ssh connections, or has it. A target that has
everything becomes a server. A server has at most two clients, so that the first targets finish soon and can serve; the
source is used last. After two failed connections in a row no other target tries (`PeerUnreachable`). A server is one
channel of its host's ssh connection. Both ends get the token on stdin.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Literal

from ipexctl.files.relay import Relay
from ipexctl.files.store_client import (
    Damaged,
    Delivery,
    StoredFile,
    StoreLocation,
    TransferEvents,
    missing,
    push,
    refuse_damaged,
)
from ipexctl.hosts.host import Host
from ipexctl.limits import PEER_SERVER_START
from ipexctl.node.files.peer_transfer import ConnectRequest, ServeRequest
from ipexctl.remote.cancel import Cancel
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.local import LocalSession
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable, ignore_event
from ipexctl.remote.reply import Reply
from ipexctl.remote.session import Session, StdinQueue
from ipexctl.remote.session_pool import SessionPool

_MAX_CLIENTS: Final = 2
"""Clients of one server at once: few, so that the first finish soon and serve others."""

_GIVE_UP: Final = 2
"""Failed connections to the source in a row until no target tries any more."""

_PATIENCE: Final = 1.0
"""Seconds a target waits for a server until it is asked what it lacks."""

_IDLE_TIMEOUT: Final = 900.0
_END_TIMEOUT: Final = 10.0


class PeerUnreachable(HostError):
    """The target could not connect to the server: no byte was transferred."""


class Server:
    def __init__(
        self,
        location: StoreLocation,
        session: Session,
        files: Sequence[StoredFile],
        cancel: Cancel,
    ) -> None:
        self.clients = 0
        self.failed = False
        assert location.address is not None
        self._location, self._address = location, location.address
        self._session = session
        self._files = files
        self._cancel = cancel
        self._token = secrets.token_hex(32)
        self._stdin = StdinQueue()
        self._lock = threading.Lock()
        self._serving: futures.Future[None] | None = None
        self._port: futures.Future[int] = futures.Future()

    def send(self, delivery: Delivery) -> None:
        events = TransferEvents(delivery.on_bytes)

        def on_event(event: Reply) -> None:
            if event.get("event") == "lacking":
                delivery.set_missing(event.texts("files"))
            else:
                events(event)

        try:
            request: ConnectRequest = {
                "store": delivery.target.store,
                "files": [file.to_json() for file in delivery.need],
                "address": self._address,
                "port": self._start(),
                "token": self._token,
            }
            response = delivery.target.call(
                delivery.session,
                "files.peer_transfer",
                "connect",
                request,
                on_event=on_event,
                timeout=delivery.timeout,
                cancel=self._cancel,
            )
        except (Cancelled, TimedOut, Unreachable):
            raise
        except HostError as error:
            if events.is_ready or not delivery.is_asked:
                raise
            raise PeerUnreachable(error.reason, error.fix) from error
        refuse_damaged(response, f"{self._location.host.name}'s copy is damaged")

    def close(self) -> futures.Future[None] | None:
        self._stdin.end()
        return self._serving

    def _start(self) -> int:
        with self._lock:
            if self._serving is None:
                self._serving = run_in_background(self._serve, "server")
        try:
            return self._port.result(PEER_SERVER_START)
        except futures.TimeoutError:
            raise PeerUnreachable(f"no server has started within {PEER_SERVER_START:g} s") from None
        except HostError as error:
            # Not Unreachable: the server's host is lost, not the target.
            raise PeerUnreachable(error.reason, error.fix) from error

    def _serve(self) -> None:
        request: ServeRequest = {
            "store": self._location.store,
            "files": [file.to_json() for file in self._files],
            "bind": self._address,
            "token": self._token,
            "clients": 0,
            "addresses": [],
            "idle": _IDLE_TIMEOUT,
        }
        error = HostError("its server has ended")
        try:
            self._location.call(
                self._session,
                "files.peer_transfer",
                "serve",
                request,
                stdin=self._stdin,
                on_event=self._on_event,
                cancel=self._cancel,
            )
        except HostError as caught:
            error = caught
        finally:
            if not self._port.done():
                self._port.set_exception(error)

    def _on_event(self, event: Reply) -> None:
        if event.get("event") == "serving" and not self._port.done():
            self._port.set_result(event.integer("port"))


class Servers:
    """Servers of hosts with all files. The first is the source; others are preferred to relieve it."""

    def __init__(self, files: Sequence[StoredFile], cancel: Cancel) -> None:
        self._files = files
        self._cancel = cancel
        self._servers: list[Server] = []
        self._changed = threading.Condition()
        self._failures = 0

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        ending = [serving for server in self._servers if (serving := server.close()) is not None]
        futures.wait(ending, _END_TIMEOUT)

    def add(self, location: StoreLocation, session: Session) -> None:
        with self._changed:
            self._servers.append(Server(location, session, self._files, self._cancel))
            self._changed.notify_all()

    def send(self, delivery: Delivery) -> None:
        """Send from a free server. If one other than the source fails, use the source."""
        only_source = False
        while True:
            with self._acquire(only_source, math.inf if delivery.is_asked else _PATIENCE) as server:
                if server is None:
                    delivery.find_missing()
                    if delivery.had_all:
                        return
                    continue
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

    @contextmanager
    def _acquire(self, only_source: bool, patience: float) -> Iterator[Server | None]:
        server = self._take(only_source, time.monotonic() + patience)
        try:
            yield server
        finally:
            if server is not None:
                with self._changed:
                    server.clients -= 1
                    self._changed.notify_all()

    def _take(self, only_source: bool, until: float) -> Server | None:
        with self._changed:
            while True:
                if self._cancel.thrown:
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
                if time.monotonic() > until:
                    return None
                self._changed.wait(0.2)


Route = Literal["there", "server", "here"]
"""Source of the files: present already, a host's server, or through the control machine."""


class Distributor:
    """`bring` is called from each target's own thread, many at once."""

    def __init__(
        self,
        pool: SessionPool,
        source: StoreLocation,
        files: Sequence[StoredFile],
        *,
        on_progress: Callable[[Host, int, int | None], None] = ignore_event,
        local: Mapping[StoredFile, Path] | None = None,
    ) -> None:
        self._local = local
        self._pool = pool
        self._source = source
        self._files = tuple(files)
        self._on_progress = on_progress
        self._exit_stack = ExitStack()
        self._lock = threading.Lock()
        self._servers: Servers | None = None
        self._relay: Relay | None = None
        self._damaged: tuple[StoredFile, ...] = ()

    def __enter__(self) -> Distributor:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()

    def bring(
        self,
        target: StoreLocation,
        session: Session,
        *,
        timeout: float | None = None,
        files: Sequence[StoredFile] | None = None,
    ) -> Route:
        """Copy the files that the target lacks; returns the route. `timeout` limits one route.

        `files`: those the target needs (default: all). Raises a HostError naming every route tried.
        """
        if (target.host, target.store) == (self._source.host, self._source.store):
            return "there"
        wanted = self._files if files is None else tuple(files)
        delivery = Delivery(target, session, wanted, timeout, self._pool.cancel, self._on_progress)
        if not self._source.address:
            delivery.find_missing()
            if delivery.had_all:
                return "there"
        failures: list[str] = []
        fix = ""
        for route, name, transfer in self._routes():
            try:
                transfer(delivery)
            except (Cancelled, TimedOut):
                raise
            except HostError as error:
                failures.append(f"{name}: {error.reason}")
                fix = error.fix
                if isinstance(error, Damaged):
                    self._verify_source()
                delivery.find_missing()
                if delivery.need:
                    self._refuse_damaged_source()
                    continue
            delivery.finish()
            if self._servers is not None and target.address and wanted == self._files:
                self._servers.add(target, session)  # it has all files now, and can serve others
            return "there" if delivery.had_all else route
        raise HostError("; ".join(failures), fix)

    def _routes(self) -> Iterator[tuple[Route, str, Callable[[Delivery], None]]]:
        if self._source.address:
            yield "server", f"from {self._source.host.name}'s server", self._from_server
        yield "here", "through this machine", self._through_control_machine

    def _from_server(self, delivery: Delivery) -> None:
        with self._lock:
            if self._servers is None:
                with self._source_session() as session:
                    servers = Servers(self._files, self._pool.cancel)
                    servers.add(self._source, session)
                self._servers = self._exit_stack.enter_context(servers)
        self._servers.send(delivery)

    def _through_control_machine(self, delivery: Delivery) -> None:
        push(
            delivery.session,
            delivery.target,
            self._local_files(delivery.need),
            on_bytes=delivery.on_bytes,
            timeout=delivery.timeout,
            cancel=self._pool.cancel,
        )

    def _local_files(self, files: Sequence[StoredFile]) -> Iterator[tuple[StoredFile, Path]]:
        if self._local is not None:
            return ((file, self._local[file]) for file in files)
        with self._source_session() as session:
            if isinstance(session, LocalSession):
                return ((file, Path(self._source.store, file.sha256, file.name)) for file in files)
        with self._lock:
            if self._relay is None:
                relay = Relay(self._source, self._source_session, self._pool.cancel)
                self._relay = self._exit_stack.enter_context(relay)
        return self._relay.files(files)

    @contextmanager
    def _source_session(self) -> Iterator[Session]:
        """The source's session. Losing it is the source's error: the target is not unreachable."""
        try:
            yield self._pool.session(self._source.host)
        except Unreachable as error:
            raise HostError(f"{self._source.host.name}: {error.reason}", error.fix) from None

    def _verify_source(self) -> None:
        """Remove damaged copies at the source, so that the next command downloads them again."""
        with self._lock, self._source_session() as session:
            cancel = self._pool.cancel
            self._damaged = missing(session, self._source, self._files, verify=True, cancel=cancel)

    def _refuse_damaged_source(self) -> None:
        """Another transfer may have detected the damage: then a file is missing here."""
        with self._lock:
            damaged = self._damaged
        if damaged:
            names = ", ".join(file.name for file in damaged)
            raise HostError(
                f"{self._source.host.name}'s copy of {names} was damaged, and was removed there", "run it again"
            )
