"""Transfers files from the store of one host directly to that of another: a temporary server and its client.

Both get the same token from the control machine, and each proves to the other that it has it. Then the client sends
the hashes it needs, and receives the store's frames.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import threading
import time
from typing import Any, BinaryIO, cast

from ipexctl.node.common import sockets
from ipexctl.node.common.answer import Action, AgentError, Json, answer
from ipexctl.node.files import store

HANDSHAKE_TIME = 5.0
"""Seconds for the other side to prove that it has the token."""
_STALL_TIME = 60.0
_MAX_LINE = 1 << 10
MAX_REQUEST = 1 << 24
_MAX_UNAUTHENTICATED = 32
MALFORMED = (ValueError, KeyError, TypeError, RecursionError)
"""Errors raised by an invalid message."""


def send_line(conn: socket.socket, message: Any) -> None:
    conn.sendall(json.dumps(message).encode() + b"\n")


def read_line(conn: socket.socket, deadline: float, limit: int = _MAX_LINE) -> Any:
    """One line. The two sides take turns, so no data can follow it."""
    line = bytearray()
    while not line.endswith(b"\n"):
        conn.settimeout(max(0.001, deadline - time.monotonic()))
        data = conn.recv(1 << 16)
        line += data
        if not data or len(line) > limit:
            raise ConnectionError("the other side closed the connection" if not data else "its line is too long")
    return json.loads(line)


class ServeRequest(store.StoreRequest):
    bind: str
    """The address to listen on."""
    token: str
    clients: int
    """The number that may connect at once, besides a few strangers."""
    idle: float
    """Seconds without a client, after which the server ends."""


class ConnectRequest(store.StoreRequest):
    address: str
    port: int
    token: str


class TokenServer:
    """Handles each client that proves that it has the token, in a thread of its own."""

    def __init__(self, bind: str, token: str, clients: int = 0) -> None:
        """Raises an OSError if nothing can listen on `bind`. `clients`: that many may connect at once."""
        self.listener = sockets.listen(bind)
        self.port: int = self.listener.getsockname()[1]
        self._token = token
        self._unauthenticated = threading.BoundedSemaphore(_MAX_UNAUTHENTICATED + clients)

    def handle(self, conn: socket.socket) -> None:
        raise NotImplementedError

    def accept(self) -> None:
        try:
            conn, _ = self.listener.accept()
        except OSError:
            return
        if self._unauthenticated.acquire(blocking=False):
            threading.Thread(target=self._handle_client, args=(conn,), daemon=True).start()
        else:
            conn.close()

    def _handle_client(self, conn: socket.socket) -> None:
        with conn, contextlib.suppress(OSError, *MALFORMED, AgentError):
            try:
                self._authenticate(conn)
            finally:
                self._unauthenticated.release()
            self.handle(conn)

    def _authenticate(self, conn: socket.socket) -> None:
        """Raises when the client does not prove in time that it has the token."""
        deadline = time.monotonic() + HANDSHAKE_TIME
        own_nonce = secrets.token_hex(32)
        conn.settimeout(HANDSHAKE_TIME)
        send_line(conn, {"nonce": own_nonce})
        message = read_line(conn, deadline)
        peer_nonce = str(message["nonce"])
        if not sockets.is_proof(message["proof"], sockets.proof(self._token, "client", own_nonce, peer_nonce)):
            raise ConnectionError("a client without the token")
        send_line(conn, {"proof": sockets.proof(self._token, "server", peer_nonce, own_nonce)})


class FileServer(TokenServer):
    """Serves files of one store."""

    def __init__(self, request: ServeRequest) -> None:
        try:
            super().__init__(request["bind"], request["token"], request["clients"])
        except OSError as error:
            raise AgentError(f"nothing can listen on {request['bind']}: {error.strerror or error}") from None
        self._request = request
        self._files = {file["sha256"]: file for file in request["files"]}
        self._lock = threading.Lock()
        self._serving = 0
        self._last = time.monotonic()

    def run(self, user: int) -> None:
        """Serve until the other end of the pipe `user` is closed, or no client has come for a while."""
        with self.listener:
            while self._is_needed():
                ready, _, _ = select.select([self.listener.fileno(), user], [], [], 1.0)
                if user in ready and not os.read(user, 4096):
                    break
                if self.listener.fileno() in ready:
                    self.accept()

    def _is_needed(self) -> bool:
        with self._lock:
            return self._serving > 0 or time.monotonic() - self._last < self._request["idle"]

    def handle(self, conn: socket.socket) -> None:
        with self._lock:
            self._serving += 1
        try:
            self._serve(conn)
        finally:
            with self._lock:
                self._serving -= 1
                self._last = time.monotonic()

    def _serve(self, conn: socket.socket) -> None:
        hashes = read_line(conn, time.monotonic() + _STALL_TIME, MAX_REQUEST)
        files = [self._files[sha256] for sha256 in hashes if sha256 in self._files]
        conn.settimeout(_STALL_TIME)

        def send_body(file: BinaryIO, size: int) -> None:
            if size and conn.sendfile(file, 0, size) != size:
                raise ConnectionError(f"{file.name} changed while it was read")

        store.send({"store": self._request["store"], "files": files}, conn.sendall, send_body)


def connect(request: ConnectRequest, report: store.Report = store.emit_or_end) -> Json:
    """Fetch the files that this host's store lacks from the server of another host."""
    directory, files = request["store"], request["files"]
    present = set(store.have({"store": directory, "files": files, "verify": False})["have"])
    files = [file for file in files if file["sha256"] not in present]
    report("lacking", files=[file["sha256"] for file in files])
    if not files:
        return {"got": [], "failed": []}
    peer = f"{request['address']} port {request['port']}"
    fix = "does a firewall stand between the two hosts? --iface names the network they share"
    try:
        conn = socket.create_connection((request["address"], request["port"]), timeout=HANDSHAKE_TIME)
    except OSError as error:
        raise AgentError(f"no connection to {peer}: {error.strerror or error}", fix) from None
    with conn:
        try:
            prove_to_server(conn, request["token"])
            send_line(conn, [file["sha256"] for file in files])
        except (OSError, *MALFORMED) as error:
            raise AgentError(f"{peer} is not the server that was meant: {error}", fix) from None
        conn.settimeout(_STALL_TIME)
        with conn.makefile("rb", buffering=1 << 16) as stream:
            try:
                return store.receive({"store": directory, "files": files}, cast("BinaryIO", stream), report)
            except OSError as error:
                raise AgentError(f"the connection to {peer} was lost: {error.strerror or error}", fix) from None


def prove_to_server(conn: socket.socket, token: str) -> None:
    """Prove to a `TokenServer` that this client has the token; raises unless the server proves it, too."""
    deadline = time.monotonic() + 2 * HANDSHAKE_TIME
    peer_nonce, own_nonce = str(read_line(conn, deadline)["nonce"]), secrets.token_hex(32)
    send_line(conn, {"nonce": own_nonce, "proof": sockets.proof(token, "client", peer_nonce, own_nonce)})
    if not sockets.is_proof(read_line(conn, deadline)["proof"], sockets.proof(token, "server", own_nonce, peer_nonce)):
        raise ConnectionError("it doesn't have the token")


def serve(request: ServeRequest, stdin: BinaryIO) -> Json:
    """Only the end of stdin may follow the request: a buffer could hold data that `select` would miss."""
    server = FileServer(request)
    store.emit_or_end("serving", port=server.port)
    server.run(stdin.fileno())
    return {}


def main(action: str) -> int:
    store.end_on_signals()
    actions: dict[str, Action] = {"serve": serve, "connect": lambda request, _: connect(request)}
    return answer(actions[action])
