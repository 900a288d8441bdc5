"""A threaded server and a client on blocking sockets. A handshake first proves that both ends have the same token."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Iterable

from ipexctl.node.common import listener
from ipexctl.node.common.answer import AgentError
from ipexctl.node.common.clock import Countdown
from ipexctl.node.common.frames import FrameError, FrameReader, decode_json, encode_json
from ipexctl.node.common.json_records import as_object, parse_json
from ipexctl.node.common.listener import Listener
from ipexctl.node.common.token_proof import (
    ANSWERS,
    MAX_FRAME,
    ClientHandshake,
    ConnectionBroken,
    HandshakeError,
    MessageSocket,
    OrderProof,
    ServerHandshake,
    ready,
)

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

REPLY_TIME = 5.0
"""Seconds to connect, and for each message of the handshake."""
PATIENCE = 20.0
"""Seconds to retry while the server keeps closing the connection."""
MAX_LINE = 1 << 24
MALFORMED = (ValueError, KeyError, TypeError)
_RETRY_INTERVAL = 0.1


class ConnectError(OSError):
    """Raised if no server with the token can be reached; the text is the reason."""


class AnotherProgram(ConnectError):
    """The program at that port does not have the token."""


class ChangedLine(ConnectionError):
    """Raised if a line is not the next one that the other end has sent."""


class ProvenLines:
    """Lines of JSON objects in both directions, each with a proof."""

    def __init__(self, conn: socket.socket, sent: OrderProof, received: OrderProof) -> None:
        self.conn, self._sent, self._received = conn, sent, received

    def send(self, message: Json) -> None:
        """Send an object as a line with its proof. Raises an OSError if the connection is broken."""
        send_line(self.conn, self._sent.sign(message))

    def receive(self, seconds: float) -> Json:
        """Return the next line of the other end. Raises a ChangedLine if it is not that, a ValueError if it is no JSON
        object, and another OSError if none comes within `seconds`."""
        try:
            message = as_object(read_line(self.conn, seconds))
            self._received.check(message)
        except HandshakeError:
            raise ChangedLine("somebody on the network changes what it and node0 send each other") from None
        return message


class AuthenticatingServer(ABC):
    def __init__(
        self, bind: str, token: str, port: str, clients: int = 0, addresses: Iterable[str] = (), number: int = 0
    ) -> None:
        """Raises an OSError if the server can't listen on `bind`.

        `port`: kind of port, for the handshake; `clients`: how many may connect at once; `addresses`: the clients'
        addresses, if known; `number`: port number, 0 for any.
        """
        listening = listener.listen(bind, number)
        self.port: int = listening.getsockname()[1]
        self._listener = Listener([listening], token, port, self._on_client, clients)
        self._listener.addresses.update(addresses)

    @abstractmethod
    def handle(self, lines: ProvenLines) -> None:
        """Serve a client. An error ends only this client."""

    def is_needed(self) -> bool:
        """Return whether `run` goes on serving. It asks after each wait, which lasts a second at most."""
        return True

    def run(self, stop: int) -> None:
        """Serve until the other end of the pipe `stop` is closed, or the server is no longer needed."""
        try:
            while self.is_needed():
                readable, _ = ready([stop, *self._listener.readers()], self._listener.writers(), 1.0)
                if stop in readable and not os.read(stop, 4096):
                    break
                self._listener.handle_ready(readable)
                self._listener.drop_late(time.monotonic())
        finally:
            self._listener.close()

    def _on_client(self, conn: MessageSocket, handshake: ServerHandshake, _: Json) -> None:
        conn.send(encode_json(handshake.welcome()))
        conn.flush()
        if conn.pending:
            raise ConnectionBroken("the client reads nothing")
        conn.sock.setblocking(True)
        lines = ProvenLines(conn.sock, handshake.order_proof(), handshake.order_proof(ANSWERS))
        try:
            threading.Thread(target=self._handle_client, args=(lines,), daemon=True).start()
        except RuntimeError:  # the account reached its limit of threads
            raise ConnectionBroken("no thread can be started") from None

    def _handle_client(self, lines: ProvenLines) -> None:
        with lines.conn, contextlib.suppress(OSError, *MALFORMED, AgentError):
            self.handle(lines)


def connect(
    address: str,
    port: int,
    token: str,
    kind: str,
    *,
    patience: float = PATIENCE,
    reply_time: float = REPLY_TIME,
) -> ProvenLines:
    """Connect to an `AuthenticatingServer`; raises a ConnectError. Retries for `patience` seconds, because strangers
    may fill the port and the server then closes connections before the handshake."""
    countdown = Countdown(patience)
    attempts = 0
    while True:
        attempts += 1
        try:
            conn = socket.create_connection((address, port), timeout=reply_time)
        except OSError as error:
            raise ConnectError(error.strerror or str(error)) from None
        try:
            return _authenticate(conn, ClientHandshake(token, kind), reply_time)
        except HandshakeError as error:
            raise AnotherProgram(str(error)) from None
        except OSError as error:
            if countdown.left < 2 * _RETRY_INTERVAL:
                reason = f"{error.strerror or error}; {attempts} attempts in {patience:g} s"
                raise ConnectError(reason) from None
        time.sleep(_RETRY_INTERVAL * (0.5 + os.urandom(1)[0] / 256))  # clients differ; `random` loads OpenSSL


def _authenticate(conn: socket.socket, handshake: ClientHandshake, reply_time: float) -> ProvenLines:
    """Do the handshake. Closes the connection on failure. A HandshakeError means that another program answers."""
    try:
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = FrameReader(MAX_FRAME)
        conn.sendall(encode_json(handshake.hello(_read_frame(conn, reader, reply_time))))
        handshake.check(_read_frame(conn, reader, reply_time))
        conn.settimeout(None)
    except BaseException:
        conn.close()
        raise
    return ProvenLines(conn, handshake.order_proof(ANSWERS), handshake.order_proof())


def _read_frame(conn: socket.socket, reader: FrameReader, reply_time: float) -> Json:
    countdown = Countdown(reply_time)
    while True:
        conn.settimeout(max(0.001, countdown.left))
        data = conn.recv(MAX_FRAME)
        if not data:
            raise ConnectionError("the connection was closed before the token was proven")
        try:
            frames = list(reader.feed(data))
            if frames and (len(frames) > 1 or reader.has_rest or frames[0][0] != b"J"):
                raise FrameError("more than one message")
            if frames:
                return decode_json(frames[0][1])
        except FrameError as error:
            raise HandshakeError(str(error)) from None


def send_line(conn: socket.socket, message: Any) -> None:
    """Send a JSON value as a line, without a proof."""
    conn.sendall(json.dumps(message).encode() + b"\n")


def read_line(conn: socket.socket, seconds: float, limit: int = MAX_LINE) -> Any:
    """Read one line. Both sides take turns, so no further data can follow the line."""
    line = bytearray()
    countdown = Countdown(seconds)
    while not line.endswith(b"\n"):
        conn.settimeout(max(0.001, countdown.left))
        data = conn.recv(1 << 16)
        line += data
        if not data or len(line) > limit:
            raise ConnectionError("the other side closed the connection" if not data else "its line is too long")
    return parse_json(line)
