"""Files from one node's store straight to another's: a server for one occasion, and its client.

Both ends were given one token by whoever arranges it, and each proves to the other that it has it; then the client
says which hashes it wants and gets frames. What a frame is, and what becomes of it, is `store`'s business, whose text
comes with the request.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import select
import socket
import sys
import threading
import time
import types
from typing import Any, BinaryIO

_STRANGER = 5.0
"""Seconds to prove that one has the token."""
_STALLED = 60.0
_LINE = 1 << 10
_WANTED = 1 << 24
_STRANGERS = 32
_NOT_SAID_SO = (ValueError, KeyError, TypeError, RecursionError)
"""What reading a message of another shape ends in."""


def library(text: str) -> Any:
    """A script beside this one, as a module."""
    module = types.ModuleType("store")
    exec(compile(text, "store", "exec"), module.__dict__)  # noqa: S102
    return module


def _proof(token: str, role: str, *nonces: str) -> str:
    return hmac.new(token.encode(), "|".join([role, *nonces]).encode(), hashlib.sha256).hexdigest()


def _is(proof: Any, expected: str) -> bool:
    return isinstance(proof, str) and hmac.compare_digest(proof.encode(), expected.encode())


def _tell(conn: socket.socket, message: Any) -> None:
    conn.sendall(json.dumps(message).encode() + b"\n")


def _hear(conn: socket.socket, deadline: float, most: int = _LINE) -> Any:
    """One line; each side speaks only when it is its turn, so that nothing can follow it."""
    line = bytearray()
    while not line.endswith(b"\n"):
        conn.settimeout(max(0.001, deadline - time.monotonic()))
        data = conn.recv(1 << 16)
        line += data
        if not data or len(line) > most:
            raise ConnectionError("the other side hung up" if not data else "too much was said")
    return json.loads(line)


class _Server:
    """Hands out the files of one store until its stdin ends or nobody has come for a while."""

    def __init__(self, store: Any, request: dict[str, Any]) -> None:
        self._store = store
        self._request = request
        self._files = {file["sha256"]: file for file in request["files"]}
        self._strangers = threading.BoundedSemaphore(_STRANGERS)
        self._lock = threading.Lock()
        self._serving = 0
        self._last = time.monotonic()

    def run(self, stdin: BinaryIO) -> dict[str, Any]:
        with self._listener() as listener:
            self._store.say("serving", port=listener.getsockname()[1])
            while self._wanted():
                ready, _, _ = select.select([listener.fileno(), stdin.fileno()], [], [], 1.0)
                # Whoever arranged this holds our stdin open for as long as it is wanted.
                if stdin.fileno() in ready and not os.read(stdin.fileno(), 4096):
                    break
                if listener.fileno() in ready:
                    self._accept(listener)
        return {}

    def _listener(self) -> socket.socket:
        bind = self._request["bind"]
        try:
            family, kind, proto, _, address = socket.getaddrinfo(bind, 0, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, kind, proto)
            listener.bind(address)
            listener.listen(128)
        except OSError as error:
            raise self._store.Failed(f"nothing can listen on {bind}: {error.strerror or error}") from None
        return listener

    def _wanted(self) -> bool:
        with self._lock:
            return self._serving > 0 or time.monotonic() - self._last < self._request["idle"]

    def _accept(self, listener: socket.socket) -> None:
        try:
            conn, _ = listener.accept()
        except OSError:
            return
        if self._strangers.acquire(blocking=False):
            threading.Thread(target=self._attend, args=(conn,), daemon=True).start()
        else:
            conn.close()

    def _attend(self, conn: socket.socket) -> None:
        with conn, contextlib.suppress(OSError, *_NOT_SAID_SO, self._store.Failed):
            try:
                self._get_to_know(conn)
            finally:
                self._strangers.release()
            with self._lock:
                self._serving += 1
            try:
                self._serve(conn)
            finally:
                with self._lock:
                    self._serving -= 1
                    self._last = time.monotonic()

    def _get_to_know(self, conn: socket.socket) -> None:
        """Raises where the other side doesn't prove in time that it was sent."""
        deadline = time.monotonic() + _STRANGER
        token, ours = self._request["token"], secrets.token_hex(32)
        conn.settimeout(_STRANGER)
        _tell(conn, {"nonce": ours})
        said = _hear(conn, deadline)
        theirs = str(said["nonce"])
        if not _is(said["proof"], _proof(token, "client", ours, theirs)):
            raise ConnectionError("a stranger")
        _tell(conn, {"proof": _proof(token, "server", theirs, ours)})

    def _serve(self, conn: socket.socket) -> None:
        wanted = _hear(conn, time.monotonic() + _STALLED, _WANTED)
        files = [self._files[sha256] for sha256 in wanted if sha256 in self._files]
        conn.settimeout(_STALLED)
        request = {"store": self._request["store"], "files": files}

        def pour(file: BinaryIO, size: int) -> None:
            if size and conn.sendfile(file, 0, size) != size:
                raise ConnectionError(f"{file.name} changed while it was read")

        self._store.send(request, conn.sendall, pour)


def serve(store: Any, request: dict[str, Any], stdin: BinaryIO) -> dict[str, Any]:
    return _Server(store, request).run(stdin)


def connect(store: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Fetch files from such a server into the store here."""
    where = f"{request['address']} port {request['port']}"
    fix = "does a firewall stand between the two hosts? --iface names the network they share"
    try:
        conn = socket.create_connection((request["address"], request["port"]), timeout=_STRANGER)
    except OSError as error:
        raise store.Failed(f"no connection to {where}: {error.strerror or error}", fix) from None
    with conn:
        try:
            _introduce(conn, request["token"])
            _tell(conn, [file["sha256"] for file in request["files"]])
        except (OSError, *_NOT_SAID_SO) as error:
            raise store.Failed(f"{where} is not the server that was meant: {error}", fix) from None
        conn.settimeout(_STALLED)
        with conn.makefile("rb", buffering=1 << 16) as stream:
            try:
                answer: dict[str, Any] = store.receive(request, stream)
            except OSError as error:
                raise store.Failed(f"the connection to {where} was lost: {error.strerror or error}", fix) from None
    return answer


def _introduce(conn: socket.socket, token: str) -> None:
    deadline = time.monotonic() + 2 * _STRANGER
    theirs, ours = str(_hear(conn, deadline)["nonce"]), secrets.token_hex(32)
    _tell(conn, {"nonce": ours, "proof": _proof(token, "client", theirs, ours)})
    if not _is(_hear(conn, deadline)["proof"], _proof(token, "server", ours, theirs)):
        raise ConnectionError("it doesn't have our token")


def main() -> int:
    stdin = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    request = json.loads(_line(stdin))
    store = library(request.pop("library"))
    if sys.argv[1] == "serve":
        code: int = store.run(lambda asked, rest: serve(store, asked, rest), request, stdin)
    else:
        code = store.run(lambda asked, _: connect(store, asked), request, stdin)
    return code


def _line(stdin: Any) -> bytes:
    """The request, read without reading ahead: the end of stdin is waited for by its descriptor."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = stdin.read(1 << 16)
        if not data:
            break
        line += data
    return bytes(line)


if __name__ == "__main__":
    sys.exit(main())
