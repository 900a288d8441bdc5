"""Listening sockets of a run, a transfer and `--smoke`, protected from strangers on the network.

A connection is handed over once its client has proven the token. Until then its time, its size and the number of such
connections are limited. With too many, the oldest stranger's connection is closed; a client that was closed reconnects.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Any, Callable, Sequence

from ipexctl.node.common.frames import FrameError, decode_json, encode_json
from ipexctl.node.common.token_proof import ConnectionBroken, HandshakeError, MessageSocket, Pollable, ServerHandshake

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json


LOCAL = "@"
"""Prefix of a Unix socket without a file, reachable only from this machine."""
FREE_PORTS = 20000, 32000
"""The workers of Ray use 10002 to 19999. docs/security.md closes these ports to other networks."""


def resolve(address: str, port: int = 0) -> tuple[socket.AddressFamily, Any]:
    """Return family and socket address. Raises an OSError if the address can't be resolved. `port` is ignored for a
    local name."""
    if address.startswith(LOCAL):
        return socket.AF_UNIX, "\0" + address[len(LOCAL) :]
    family, _, _, _, socket_address = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    return family, socket_address


def listen(address: str, port: int = 0) -> socket.socket:
    """Return a listening socket; port 0 stands for any free one. `::` takes both families. Raises an OSError if it
    can't listen there."""
    family, socket_address = resolve(address, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if address == "::":  # both families, whatever this machine's default
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(socket_address)
        listener.listen(4096)  # every rank reconnects while the supervisor waits for a disk
    except OSError:
        listener.close()
        raise
    return listener


def is_of_this_machine(address: str) -> bool:
    """Return True if a process of this machine can listen on the address."""
    try:
        listen(address).close()
    except OSError:
        return False
    return True


def own_port(address: str, lane: int, lanes: int, taken: int) -> int:
    """Return a free port that no other lane of this machine chooses at the same time, and not `taken`. After many tries
    without one, any free port is returned."""
    port = free_port(address)
    for _ in range(200 * lanes):
        if port % lanes == lane and port != taken:
            break
        port = free_port(address)
    return port


def free_port(address: str) -> int:
    """Return a free port outside the range for outgoing connections: in it, a rank's connection might take the port
    first. Raises an OSError if there is none."""
    low, high = FREE_PORTS
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            first = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768
    if first <= low:
        low, high = 1024, max(1025, first - 1)
    family, socket_address = resolve(address)
    size = high - low + 1
    start = int.from_bytes(os.urandom(4), "big") % size
    for index in range(min(size, 2000)):
        port = low + (start + index) % size
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((socket_address[0], port, *socket_address[2:]))
            except OSError:
                continue
            return port
    raise OSError(0, f"no free port among {low} to {high}")


AUTHENTICATION_TIME = 5.0
MAX_UNAUTHENTICATED = 512
"""Most unauthenticated connections, in addition to one per expected client."""
MAX_OF_ONE_ADDRESS = 32
_ACCEPTED_AT_ONCE = 32
"""Connections accepted between two polls, so that replies are read before their connections become the oldest."""
OnClient = Callable[[MessageSocket, ServerHandshake, "Json"], None]
"""Called with the connection and hello of an authenticated client; sends the welcome."""


class Listener:
    def __init__(
        self, listening: Sequence[socket.socket], token: str, port: str, on_client: OnClient, expected: int = 0
    ) -> None:
        """`port`: kind of port, for the handshake. `expected`: how many clients may connect at once."""
        self.expected = expected
        self.addresses = {LOCAL}
        self._listening = list(listening)
        for listener in self._listening:
            listener.setblocking(False)
        self._token, self._port, self._on_client = token, port, on_client
        self._unauthenticated: dict[MessageSocket, ServerHandshake] = {}

    def readers(self) -> list[Pollable]:
        """Return the ports, and the connections that have not proven the token."""
        return [*self._listening, *self._unauthenticated]

    def writers(self) -> list[MessageSocket]:
        """Return the connections that have not proven the token and have unsent data."""
        return [conn for conn in self._unauthenticated if conn.pending]

    def handle_ready(self, readable: Sequence[Pollable]) -> None:
        """Handle readable connections first, because accepting new ones may close old ones."""
        for conn in readable:
            if isinstance(conn, MessageSocket) and conn in self._unauthenticated:
                self._drop_on_error(conn, self._receive_hello)
        for conn in self.writers():
            self._drop_on_error(conn, MessageSocket.flush)
        for listener in readable:
            if isinstance(listener, socket.socket) and listener in self._listening:
                self._accept(listener)

    def drop_late(self, now: float) -> None:
        """Close connections that have not proven the token in AUTHENTICATION_TIME. `now`: the monotonic clock."""
        for conn in [conn for conn in self._unauthenticated if now - conn.began > AUTHENTICATION_TIME]:
            self._drop(conn)

    def drop_all(self) -> None:
        """Close all connections that have not proven the token. The ports stay open."""
        for conn in list(self._unauthenticated):
            self._drop(conn)

    def close(self) -> None:
        """Close the ports, and all connections that have not proven the token."""
        self.drop_all()
        for listener in self._listening:
            listener.close()
        self._listening = []

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._unauthenticated:
                    self._drop_oldest(self._unauthenticated)  # else the port stays readable and keeps a core busy
                return
            try:
                conn = MessageSocket(sock, LOCAL if sock.family == socket.AF_UNIX else address[0])
            except OSError:
                sock.close()
                continue
            self._make_room(conn.address)
            self._unauthenticated[conn] = handshake = ServerHandshake(self._token, self._port)
            conn.send(encode_json(handshake.challenge()))
            self._drop_on_error(conn, MessageSocket.flush)

    def _make_room(self, address: str) -> None:
        same_address = [conn for conn in self._unauthenticated if conn.address == address]
        if len(same_address) >= MAX_OF_ONE_ADDRESS + self.expected:
            self._drop(same_address[0])
        elif len(self._unauthenticated) >= MAX_UNAUTHENTICATED + self.expected:
            self._drop_oldest(self._unauthenticated)

    def _drop_oldest(self, conns: dict[MessageSocket, ServerHandshake]) -> None:
        strangers = [conn for conn in conns if conn.address not in self.addresses]
        self._drop((strangers or list(conns))[0])

    def _receive_hello(self, conn: MessageSocket) -> None:
        frames = list(conn.receive())
        if not frames:
            return
        if len(frames) > 1 or conn.reader.has_rest or frames[0][0] != b"J":
            raise ConnectionBroken("it sends more than a hello")
        handshake, hello = self._unauthenticated[conn], decode_json(frames[0][1])
        try:
            handshake.check(hello)
        except HandshakeError as error:
            conn.send(encode_json(handshake.refusal()))
            conn.flush()
            raise ConnectionBroken(str(error)) from None
        self.addresses.add(conn.address)
        self._on_client(conn, handshake, hello)
        self._unauthenticated.pop(conn, None)

    def _drop_on_error(self, conn: MessageSocket, action: Callable[[MessageSocket], None]) -> None:
        try:
            action(conn)
        except (ConnectionBroken, FrameError, OSError):
            self._drop(conn)

    def _drop(self, conn: MessageSocket) -> None:
        self._unauthenticated.pop(conn, None)
        conn.close()
