"""Servers that hosts open for one another for one occasion, and which of them serves whom.

Each is one channel of that host's own connection, and ends with it. The token that both ends need travels by stdin.
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

_AT_ONCE: Final = 2
"""Clients of one server: few, so that the first are soon done and serve the next."""

GIVE_UP: Final = 2
"""Targets in a row that were not reached, before the others are spared the wait."""

_IDLE: Final = 900.0
_TO_START: Final = 20.0


class PeerUnreachable(HostError):
    """The two hosts didn't get as far as the first byte."""


class Server:
    """One host's server, started when it is first needed."""

    def __init__(self, place: StoreLocation, session: Session, blobs: Sequence[StoredFile], cancel: Cancel) -> None:
        self.place = place
        self.token = secrets.token_hex(32)
        self.clients = 0
        self.failed = False
        self._session = session
        self._blobs = blobs
        self._cancel = cancel
        self._lifeline = _OpenStdin()
        self._settled = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._port = 0
        self._error: HostError | None = None

    def port(self) -> int:
        """Where it listens; raises a HostError where it can't."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="server", daemon=True)
                self._thread.start()
        if not self._settled.wait(_TO_START):
            raise HostError(f"no server has started within {_TO_START:g} s")
        if self._error is not None:
            raise HostError(self._error.reason, self._error.fix) from self._error
        return self._port

    def _serve(self) -> None:
        request = {
            "store": self.place.store,
            "files": [blob.to_json() for blob in self._blobs],
            "bind": self.place.address,
            "token": self.token,
            "idle": _IDLE,
        }
        try:
            call(
                self._session,
                "files.peer_transfer",
                "serve",
                request,
                python=self.place.python,
                stdin=cast("BinaryIO", self._lifeline),
                on_event=self._hear,
                cancel=self._cancel,
            )
            self._error = HostError("its server has ended")
        except HostError as error:
            self._error = error
        finally:
            self._error = self._error or HostError("its server broke off")
            self._settled.set()

    def _hear(self, event: dict[str, Any]) -> None:
        if event.get("event") == "serving":
            self._port = int(event["port"])
            self._settled.set()

    def close(self) -> None:
        self._lifeline.let_go()
        if self._thread is not None:
            self._thread.join(10)


class _OpenStdin(io.RawIOBase):
    """A stdin that has nothing to say, and ends when it is let go."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        del size
        self._over.wait()
        return b""

    def let_go(self) -> None:
        self._over.set()


class Servers:
    """Those who have all blobs and can be reached. The first is the source, the others are asked to spare it."""

    def __init__(self, blobs: Sequence[StoredFile], cancel: Cancel) -> None:
        self._blobs = blobs
        self._cancel = cancel
        self._servers: list[Server] = []
        self._changed = threading.Condition()
        self._in_vain = 0

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        closing = [threading.Thread(target=server.close, daemon=True) for server in self._servers]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def add(self, place: StoreLocation, session: Session) -> None:
        with self._changed:
            self._servers.append(Server(place, session, self._blobs, self._cancel))
            self._changed.notify_all()

    def serve(self, go: Callable[[Server], None]) -> None:
        """Do it with whichever server is free. Where another than the first fails, the first is asked."""
        only_first = False
        while True:
            with self._one(only_first) as server:
                is_first = server is self._servers[0]
                try:
                    go(server)
                except (Cancelled, TimedOut, Unreachable):
                    raise
                except HostError as error:
                    # Anything else may just as well be the client's fault.
                    server.failed = server.failed or isinstance(error, (PeerUnreachable, Damaged))
                    if is_first:
                        self._in_vain += isinstance(error, PeerUnreachable)
                        raise
                    only_first = True
                else:
                    self._in_vain = 0 if is_first else self._in_vain
                    return

    @contextmanager
    def _one(self, only_first: bool) -> Iterator[Server]:
        with self._changed:
            while True:
                if self._cancel.thrown:
                    raise Cancelled("stopped")
                others = [] if only_first else [server for server in self._servers[1:] if not server.failed]
                if not others and self._in_vain >= GIVE_UP:
                    raise HostError("other hosts didn't reach it either")
                # Of those that do as little, the one that came last: the source is spared.
                server = min([*reversed(others), self._servers[0]], key=lambda server: server.clients)
                # After one in vain the next waits for what becomes of those that are still trying.
                most = 1 if self._in_vain and server is self._servers[0] else _AT_ONCE
                if server.clients < most:
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
    """Have the target fetch what it needs from that server."""
    heard = TransferEvents(on_bytes)
    try:
        port = server.port()
    except HostError as error:
        raise PeerUnreachable(error.reason, error.fix) from error
    request = {
        "store": target.store,
        "files": [blob.to_json() for blob in need],
        "address": server.place.address,
        "port": port,
        "token": server.token,
    }
    try:
        answer = call(
            session,
            "files.peer_transfer",
            "connect",
            request,
            python=target.python,
            on_event=heard,
            timeout=timeout,
            cancel=cancel,
        )
    except (Cancelled, TimedOut, Unreachable):
        raise
    except HostError as error:
        if heard.is_ready:
            raise
        raise PeerUnreachable(error.reason, error.fix) from error
    refuse_damaged(answer, f"{server.place.host.name}'s copy is damaged")
