"""File servers on hosts for the duration of one transfer, and the choice of the server for each target.

Each server is one channel of its host's ssh connection and ends with it. Both ends get the token on stdin.
"""

from __future__ import annotations

import io
import secrets
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import Cancelled, HostError, TimedOut, Unreachable
from ipexctl.remote.transfer.store_client import Damaged, TransferEvents, refuse_damaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipexctl.remote.cancel import Cancel
    from ipexctl.remote.session import Session
    from ipexctl.remote.transfer.store_client import StoredFile, StoreLocation

_MAX_CLIENTS: Final = 2
"""Clients of one server at once: few, so that the first finish soon and can serve others."""

GIVE_UP: Final = 2
"""Unreachable targets in a row before a route is no longer tried."""

_IDLE_TIMEOUT: Final = 900.0
_START_TIMEOUT: Final = 20.0


class PeerUnreachable(HostError):
    """The target could not connect to the server: no byte was transferred."""


class Server:
    """One host's server, started when first needed."""

    def __init__(self, location: StoreLocation, session: Session, blobs: Sequence[StoredFile], cancel: Cancel) -> None:
        self.location = location
        self.token = secrets.token_hex(32)
        self.clients = 0
        self.failed = False
        self._session = session
        self._blobs = blobs
        self._cancel = cancel
        self._stdin = _OpenStdin()
        self._started = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._port = 0
        self._error: HostError | None = None

    def port(self) -> int:
        """The port it listens on; raises HostError if it could not start."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="server", daemon=True)
                self._thread.start()
        if not self._started.wait(_START_TIMEOUT):
            raise HostError(f"no server has started within {_START_TIMEOUT:g} s")
        if self._error is not None:
            raise HostError(self._error.reason, self._error.fix) from self._error
        return self._port

    def _serve(self) -> None:
        request = {
            "store": self.location.store,
            "files": [blob.to_json() for blob in self._blobs],
            "bind": self.location.address,
            "token": self.token,
            "idle": _IDLE_TIMEOUT,
        }
        try:
            call(
                self._session,
                "files.peer_transfer",
                "serve",
                request,
                python=self.location.python,
                stdin=cast("BinaryIO", self._stdin),
                on_event=self._on_event,
                cancel=self._cancel,
            )
            self._error = HostError("its server has ended")
        except HostError as error:
            self._error = error
        finally:
            self._error = self._error or HostError("its server broke off")
            self._started.set()

    def _on_event(self, event: dict[str, Any]) -> None:
        if event.get("event") == "serving":
            self._port = int(event["port"])
            self._started.set()

    def close(self) -> None:
        self._stdin.close_input()
        if self._thread is not None:
            self._thread.join(10)


class _OpenStdin(io.RawIOBase):
    """A stdin without data that stays open until `close_input`."""

    def __init__(self) -> None:
        self._end_event = threading.Event()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        del size
        self._end_event.wait()
        return b""

    def close_input(self) -> None:
        self._end_event.set()


class Servers:
    """The servers of hosts that have all blobs. The first is the source; the others are preferred to relieve it."""

    def __init__(self, blobs: Sequence[StoredFile], cancel: Cancel) -> None:
        self._blobs = blobs
        self._cancel = cancel
        self._servers: list[Server] = []
        self._changed = threading.Condition()
        self._failures = 0

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        closing = [threading.Thread(target=server.close, daemon=True) for server in self._servers]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def add(self, location: StoreLocation, session: Session) -> None:
        with self._changed:
            self._servers.append(Server(location, session, self._blobs, self._cancel))
            self._changed.notify_all()

    def serve(self, transfer: Callable[[Server], None]) -> None:
        """Call `transfer` with a free server. If another than the source fails, try the source."""
        only_source = False
        while True:
            with self._acquire(only_source) as server:
                is_source = server is self._servers[0]
                try:
                    transfer(server)
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
                    self._failures = 0 if is_source else self._failures
                    return

    @contextmanager
    def _acquire(self, only_source: bool) -> Iterator[Server]:
        with self._changed:
            while True:
                if self._cancel.thrown:
                    raise Cancelled("stopped")
                others = [] if only_source else [server for server in self._servers[1:] if not server.failed]
                if not others and self._failures >= GIVE_UP:
                    raise HostError("other hosts didn't reach it either")
                # Among the servers with the fewest clients, the latest one: the source is used last.
                server = min([*reversed(others), self._servers[0]], key=lambda server: server.clients)
                # After a failed connection, the next target waits for the result of those that are still trying.
                max_clients = 1 if self._failures and server is self._servers[0] else _MAX_CLIENTS
                if server.clients < max_clients:
                    break
                self._changed.wait(0.2)
            server.clients += 1
        try:
            yield server
        finally:
            with self._changed:
                server.clients -= 1
                self._changed.notify_all()


def connect(
    server: Server,
    session: Session,
    target: StoreLocation,
    need: Sequence[StoredFile],
    *,
    on_bytes: Callable[[int], None],
    timeout: float | None,
    cancel: Cancel,
) -> None:
    """Let the target fetch the blobs it needs from that server."""
    events = TransferEvents(on_bytes)
    try:
        port = server.port()
    except HostError as error:
        raise PeerUnreachable(error.reason, error.fix) from error
    request = {
        "store": target.store,
        "files": [blob.to_json() for blob in need],
        "address": server.location.address,
        "port": port,
        "token": server.token,
    }
    try:
        response = call(
            session,
            "files.peer_transfer",
            "connect",
            request,
            python=target.python,
            on_event=events,
            timeout=timeout,
            cancel=cancel,
        )
    except (Cancelled, TimedOut, Unreachable):
        raise
    except HostError as error:
        if events.is_ready:
            raise
        raise PeerUnreachable(error.reason, error.fix) from error
    refuse_damaged(response, f"{server.location.host.name}'s copy is damaged")
