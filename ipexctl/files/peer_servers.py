"""File servers on hosts during one transfer, and the choice of a server for each target.

A target that has everything becomes a server. A server has at most two clients, so that the first targets finish soon
and can serve; the source is used last. After two failed connections in a row no other target tries (`PeerUnreachable`).
A server is one channel of its host's ssh connection. Both ends get the token on stdin.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from concurrent import futures
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ipexctl.files.store_client import Damaged, TransferEvents, refuse_damaged
from ipexctl.limits import PEER_SERVER_START
from ipexctl.remote.fanout import run_in_background
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.session import StdinQueue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ipexctl.files.store_client import Delivery, StoredFile, StoreLocation
    from ipexctl.node.files.peer_transfer import ConnectRequest, ServeRequest
    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.reply import Reply
    from ipexctl.remote.session import Session

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
