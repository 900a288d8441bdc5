"""Transfers files directly from one host's store to another: a temporary server and its client.

Both get the same token over ssh, or derive it from their run's token, and prove to each other that they have it
(`common/authenticated_socket.py`). The token never crosses the network between hosts; files do, unencrypted. The client
sends the hashes it needs and the bytes it has of each, and receives a `file_stream`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, BinaryIO, Callable, cast

from ipexctl.node.common import authenticated_socket
from ipexctl.node.common.answer import Action, AgentError, Json, answer
from ipexctl.node.common.authenticated_socket import (
    AnotherProgram,
    AuthenticatingServer,
    ConnectError,
    ProvenLines,
    read_line,
    send_line,
)
from ipexctl.node.common.clock import Stopwatch
from ipexctl.node.common.node_limits import PEER_SILENCE
from ipexctl.node.common.token_proof import FILES
from ipexctl.node.files import store
from ipexctl.node.files.file_stream import WantedFile

if TYPE_CHECKING:
    import socket

    from ipexctl.node.files.call_requests import ConnectRequest, ServeRequest, StoreFile, StoreRequest


class FileServer(AuthenticatingServer):
    def __init__(self, request: ServeRequest, open_file: Callable[[str], BinaryIO] | None = None) -> None:
        try:
            super().__init__(request["bind"], request["token"], FILES, request["clients"], request["addresses"])
        except OSError as error:
            raise AgentError(f"nothing can listen on {request['bind']}: {error.strerror or error}") from None
        self._request, self._open_file = request, open_file
        self._files = {file["sha256"]: file for file in request["files"]}
        self._lock = threading.Lock()
        self._serving = 0
        self._idle = Stopwatch()

    def is_needed(self) -> bool:
        """False once no client came for a while."""
        with self._lock:
            return self._serving > 0 or self._idle.seconds < self._request["idle"]

    def handle(self, lines: ProvenLines) -> None:
        """Send a client the files that it asks for. Hashes that the server does not have are left out."""
        with self._lock:
            self._serving += 1
        try:
            self._serve(lines.conn)
        finally:
            with self._lock:
                self._serving -= 1
                self._idle.restart()

    def _serve(self, conn: socket.socket) -> None:
        wanted = read_line(conn, PEER_SILENCE)
        files: list[StoreFile] = [
            {**self._files[str(file.name)], "offset": file.have}
            for file in map(WantedFile.of, wanted)
            if file.name in self._files
        ]
        conn.settimeout(PEER_SILENCE)

        def send_body(file: BinaryIO, offset: int, size: int) -> None:
            if size and conn.sendfile(file, offset, size) != size:
                raise ConnectionError(f"{file.name} changed while it was read")

        request: StoreRequest = {"store": self._request["store"], "files": files}
        store.send(request, conn.sendall, send_body, self._open_file)


def connect(request: ConnectRequest, report: store.Report = store.emit_or_end) -> Json:
    """Fetch the files that the store lacks from another host's server. Returns the hashes of those it got, and which
    failed.

    Raises an AgentError if the server can't be reached, is not the right one, or is lost meanwhile.
    """
    directory, files, home = request["store"], request["files"], request.get("home", "")
    files = store.find_lacking(directory, files, report)
    if not files:
        return {"got": [], "failed": []}
    peer = f"{request['address']} port {request['port']}"
    fix = "does a firewall stand between the two hosts? --iface names the network they share"
    try:
        conn = authenticated_socket.connect(request["address"], request["port"], request["token"], FILES).conn
    except AnotherProgram as error:
        raise AgentError(f"{peer} is not the server that was meant: {error}", fix) from None
    except ConnectError as error:
        raise AgentError(f"no connection to {peer}: {error}", fix) from None
    with conn:
        try:
            conn.settimeout(PEER_SILENCE)
            send_line(conn, [WantedFile(file["sha256"], file["offset"]) for file in files])
        except OSError as error:
            raise AgentError(f"the connection to {peer} was lost: {error.strerror or error}", fix) from None
        conn.settimeout(PEER_SILENCE)
        with conn.makefile("rb", buffering=1 << 16) as stream:
            try:
                return store.receive(
                    {"store": directory, "files": files, "home": home},
                    cast("BinaryIO", stream),
                    report,
                )
            except OSError as error:
                raise AgentError(f"the connection to {peer} was lost: {error.strerror or error}", fix) from None


def serve(request: ServeRequest, stdin: BinaryIO) -> Json:
    """Serve the files of the request to other hosts until stdin ends, or no client comes.

    Nothing may follow the request on stdin but its end: a buffer could hold data that `select` would miss.
    """
    with store.enter_store(request) as inside:
        server = FileServer(inside)
        store.emit_or_end("serving", port=server.port)
        server.run(stdin.fileno())
    return {}


def _connect(request: ConnectRequest, _: BinaryIO) -> Json:
    with store.enter_store(request) as inside:
        return connect(inside)


def main(action: str) -> int:
    """Answer the agent's call `serve` or `connect`, and return its exit code."""
    store.end_on_signals()
    actions: dict[str, Action] = {"serve": serve, "connect": _connect}
    return answer(actions[action])
