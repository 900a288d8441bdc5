"""One end of a non-blocking connection that carries frames, the wait for many of them, and the handshake before it.

Both ends prove that they have the same token: `challenge {nonce}`, `hello {nonce, proof, …}`, `welcome {proof, …}` or
`refused`. A proof is an HMAC over direction, both nonces and all other fields, with a key for one kind of port, so it
can't be replayed, reflected or changed. Later messages are not encrypted; of them, orders to host starters, the
starters' answers and lines of checkpoint exchanges are authenticated (`OrderProof`; docs/security.md).
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Iterator, Sequence, Union

from ipexctl.node.common.frames import Frame, FrameReader, encode_json

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json


RANKS, CHECKPOINT_EXCHANGE, CHECKPOINT_FILES = "ranks", "checkpoint exchange", "checkpoint files"
FILES, LINK_SPEED, STEP, SHELL = "files", "link speed", "step", "shell"
ORDERS, ANSWERS = "orders", "answers"
MAX_FRAME = 4096
_NONCE_SIZE = 32


class HandshakeError(Exception):
    """The other end did not prove the token; the text is the reason."""


def derive_token(token: str, *purpose: str) -> str:
    """Return a token for one purpose, 64 hex digits, that does not reveal `token`."""
    return _mac(token.encode(), ["derive", *purpose])


class ServerHandshake:
    def __init__(self, token: str, port: str) -> None:
        self._key = _key_of(token, port)
        self._nonce = _new_nonce()
        self._peer_nonce = ""

    def challenge(self) -> Json:
        """Return the server's first message."""
        return {"t": "challenge", "nonce": self._nonce}

    def check(self, hello: Json) -> None:
        """Check the client's answer. Raises a HandshakeError if it does not prove the token."""
        if hello.get("t") != "hello":
            raise HandshakeError("its first message is not a hello")
        peer_nonce = _nonce_of(hello)
        _check_proof(self._key, ["client", self._nonce, peer_nonce], hello)
        self._peer_nonce = peer_nonce

    def welcome(self, **fields: object) -> Json:
        """Return the reply to a checked hello. The proof covers `fields` too."""
        assert self._peer_nonce, "the client has proven nothing"
        message = {"t": "welcome", **fields}
        return {**message, "proof": _mac(self._key, ["server", self._nonce, self._peer_nonce, message])}

    @staticmethod
    def refusal() -> Json:
        """Return the message for a client that has not proven the token."""
        return {"t": "refused"}

    def order_proof(self, of: str = ORDERS) -> OrderProof:
        """Return what signs the orders after the welcome, or checks the answers to them (`of`: ANSWERS)."""
        return OrderProof(self._key, of, self._nonce, self._peer_nonce)


class ClientHandshake:
    def __init__(self, token: str, port: str, **identity: object) -> None:
        self._key = _key_of(token, port)
        self._identity = identity
        self._nonce = _new_nonce()
        self._peer_nonce = ""

    def hello(self, challenge: Json) -> Json:
        """Return the answer to the server's challenge. Raises a HandshakeError if that is none, or not the first."""
        if challenge.get("t") != "challenge" or self._peer_nonce:
            raise HandshakeError("another program answers there")
        self._peer_nonce = _nonce_of(challenge)
        message = {"t": "hello", "nonce": self._nonce, **self._identity}
        return {**message, "proof": _mac(self._key, ["client", self._peer_nonce, self._nonce, message])}

    def check(self, welcome: Json) -> None:
        """Check the server's welcome. Raises a HandshakeError if it does not prove the token."""
        if welcome.get("t") == "refused":
            raise HandshakeError("the program there has another token")
        if welcome.get("t") != "welcome" or not self._peer_nonce:
            raise HandshakeError("another program answers there")
        _check_proof(self._key, ["server", self._peer_nonce, self._nonce], welcome)

    def order_proof(self, of: str = ORDERS) -> OrderProof:
        """Return what checks the orders after the checked welcome, or signs the answers to them (`of`: ANSWERS)."""
        return OrderProof(self._key, of, self._peer_nonce, self._nonce)


class OrderProof:
    """Proves that each order of a server, or each answer, arrives unchanged, once, and after the one before it.

    Both ends count them. The key is of this connection and direction, so no other one's orders are proven.
    """

    def __init__(self, key: bytes, of: str, server_nonce: str, client_nonce: str) -> None:
        self._key = bytes.fromhex(_mac(key, [of, server_nonce, client_nonce]))
        self.count = 0
        """Proven so far."""

    def sign(self, order: Json) -> Json:
        """Return the next order with its proof. Orders must be sent in the order in which they are signed."""
        self.count += 1
        return {**order, "proof": _mac(self._key, [self.count, order])}

    def check(self, order: Json) -> None:
        """Raise a HandshakeError unless it is the next order."""
        _check_proof(self._key, [self.count + 1], order)
        self.count += 1


def _new_nonce() -> str:
    return os.urandom(_NONCE_SIZE // 2).hex()


def _nonce_of(message: Json) -> str:
    nonce = message.get("nonce")
    if not isinstance(nonce, str) or len(nonce) != _NONCE_SIZE:
        raise HandshakeError("its message has no nonce")
    return nonce


def _check_proof(key: bytes, before: list[Any], message: Json) -> None:
    """Check the message's proof, which also covers the values `before` it."""
    import hmac

    given = message.get("proof")
    fields = {name: value for name, value in message.items() if name != "proof"}
    try:
        expected = _mac(key, [*before, fields])
        is_proven = isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())
    except (ValueError, RecursionError):  # invalid Unicode, a number too long, an object too deep
        is_proven = False
    if not is_proven:
        raise HandshakeError("it doesn't have the token")


def _key_of(token: str, port: str) -> bytes:
    return bytes.fromhex(_mac(token.encode(), ["port", port]))


def _mac(key: bytes, document: object) -> str:
    import hashlib  # these load OpenSSL (3 to 15 ms), which most agent calls do not need
    import hmac

    text = json.dumps(document, sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


_buffer = bytearray(1 << 18)
"""Receive buffer of all connections. A new one for each read would cost 20 us to map and unmap."""


class ConnectionBroken(Exception):
    """The text is the reason."""


def message(t: str, **fields: Any) -> bytes:
    """Return a message of type `t` as a frame."""
    return encode_json({"t": t, **fields})


class MessageSocket:
    def __init__(self, sock: socket.socket, address: str = "") -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = address
        self.sock = sock
        self.reader = FrameReader(MAX_FRAME)
        self.pending = 0
        self.began = self.last_received = time.monotonic()
        self._out: deque[memoryview] = deque()

    def fileno(self) -> int:
        """Return the descriptor, for `ready`."""
        return self.sock.fileno()

    def send(self, data: bytes) -> None:
        """Queue bytes; `flush` sends them."""
        self._out.append(memoryview(data))
        self.pending += len(data)

    def flush(self) -> None:
        """Send as much as the kernel takes now. Raises a ConnectionBroken if the connection is."""
        while self._out:
            try:
                sent = self.sock.send(self._out[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise ConnectionBroken(error.strerror or str(error)) from None
            self.pending -= sent
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
                return
            self._out.popleft()

    def receive(self) -> Iterator[Frame]:
        """Yield the frames received so far; raises ConnectionBroken or, for a corrupt frame, FrameError."""
        try:
            size = self.sock.recv_into(_buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise ConnectionBroken(error.strerror or str(error)) from None
        if not size:
            raise ConnectionBroken("the other side closed the connection")
        self.last_received = time.monotonic()
        yield from self.reader.feed(bytes(memoryview(_buffer)[:size]))

    def close(self) -> None:
        """Close the connection. What is queued is lost."""
        self.sock.close()


Pollable = Union[int, socket.socket, MessageSocket]


def wake_on_signal() -> int:
    """Return a descriptor that becomes readable when a signal is handled, so that `ready` returns."""
    wake, wakeup = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    return wake


def ready(
    readers: Sequence[Pollable], writers: Sequence[Pollable], timeout: float
) -> tuple[list[Pollable], list[Pollable]]:
    """Wait until one of these is ready, at most `timeout` seconds; return those to read from and those to write to.

    A broken connection is ready to be read from: the read tells what happened.
    """
    poll = select.poll()
    by_number: dict[int, Pollable] = {}
    events: dict[int, int] = {}
    reads, writes = ((file, select.POLLIN) for file in readers), ((file, select.POLLOUT) for file in writers)
    for file, event in (*reads, *writes):
        number = file if isinstance(file, int) else file.fileno()
        by_number[number] = file
        events[number] = events.get(number, 0) | event
    for number, event in events.items():
        poll.register(number, event)
    ready_now = poll.poll(max(0, int(timeout * 1000 + 0.999)))
    can_read = [by_number[number] for number, event in ready_now if event & ~select.POLLOUT]
    can_write = [by_number[number] for number, event in ready_now if event & (select.POLLOUT | select.POLLERR)]
    return can_read, can_write
