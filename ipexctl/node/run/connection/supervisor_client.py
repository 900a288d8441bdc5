"""The connection of a rank, or of a host starter, to the supervisor, and the two output streams of a rank's command.

After a reconnect, the supervisor says how much output it has, so nothing is lost with a broken connection.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from typing import IO, TYPE_CHECKING, Any, Callable, Sequence

from ipexctl.node.common import listener
from ipexctl.node.common.frames import MAX_FRAME, SUFFIXES, FrameError, decode_json, encode_json
from ipexctl.node.common.token_proof import (
    ANSWERS,
    RANKS,
    ClientHandshake,
    ConnectionBroken,
    HandshakeError,
    MessageSocket,
    OrderProof,
    Pollable,
    ready,
)
from ipexctl.node.run.connection.supervisor_contact import Contact, Due, Stage

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.run.connection.output_buffer import OutputBuffer

READ_INTERVAL = 0.015
"""Seconds between two reads of a stream with little data per read. One read per line would use a full core."""
LINE_END_WAIT = 0.001
"""Seconds to wait for a newline, because print() writes it separately."""
READ_SIZE = 1 << 16
_TAIL = 1 << 13
MAX_PENDING = 1 << 19
REFUSALS_KEPT, REFUSED_COUNTED = 60.0, 99
"""A hello tells how many orders were refused in these seconds before, up to this number."""


class SupervisorClient:
    """The connection of a rank, or of a host starter, to its supervisor. It reconnects when it breaks; `contact`
    decides when."""

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        token: str,
        identity: Json,
        resume: Callable[[Json], None],
        now: float,
        *,
        takes_orders: bool = False,
    ) -> None:
        """`takes_orders`: after the welcome, both ends prove each message, and any other breaks the connection."""
        self.contact = Contact(tuple(addresses), last_received=now, turned_at=now)
        self._conn: MessageSocket | None = None
        self._token = token
        self._identity = identity
        self._resume = resume
        self._handshake: ClientHandshake | None = None
        """Set between challenge and welcome."""
        self._takes_orders = takes_orders
        self._orders: OrderProof | None = None
        self._answers: OrderProof | None = None
        self._refused_at: list[float] = []

    def readers(self) -> list[MessageSocket]:
        """Return the connection, once the port has accepted it, for the caller to wait until it is readable; else
        empty."""
        return [self._conn] if self._conn is not None and self.contact.stage is not Stage.CONNECTING else []

    def writers(self) -> list[MessageSocket]:
        """Return the connection while it is being made or has unsent data, for the caller to wait until it is writable;
        else empty."""
        is_connecting = self.contact.stage is Stage.CONNECTING
        return [self._conn] if self._conn is not None and (is_connecting or self._conn.pending) else []

    @property
    def room(self) -> int:
        """How many bytes may be queued now; 0 or less without a connection or if it is slow."""
        return MAX_PENDING - self._conn.pending if self._conn is not None and self.contact.is_up else 0

    def send_message(self, t: str, **fields: Any) -> None:
        """Queue a message. It is lost if there is no connection, or the handshake is not complete."""
        if self._conn is not None and self.contact.is_up:
            sent = {"t": t, **fields}
            self._conn.send(encode_json(sent if self._answers is None else self._answers.sign(sent)))

    def send(self, data: bytes) -> None:
        """Queue the bytes of a frame. The caller has looked at `room`."""
        if self._conn is not None:
            self._conn.send(data)

    def step(self, now: float) -> None:
        """Connect, drop a connection, or leave a silent one, if `contact` says that this is due."""
        due = self.contact.due(now)
        if due in (Due.DROP, Due.LEAVE) and ready(self.readers(), [], 0)[0]:
            return  # this process was slow: it has not read the answer yet, and a close would reset the connection
        if due is Due.CONNECT:
            self._connect(now)
        elif due is Due.DROP:
            self._drop("the supervisor doesn't answer", now)
        elif due is Due.LEAVE and self._conn is not None:
            self.send_message("reconnecting")
            with contextlib.suppress(ConnectionBroken):
                self._conn.flush()
            self._drop("the supervisor is silent", now)

    def _connect(self, now: float) -> None:
        code = 0
        for address in self.contact.addresses:
            sock = None
            try:
                family, socket_address = listener.resolve(*address)
                sock = socket.socket(family, socket.SOCK_STREAM)
                sock.setblocking(False)
                code = sock.connect_ex(socket_address)
            except OSError as error:
                code = error.errno or errno.EIO
            if sock is not None and code in (0, errno.EINPROGRESS):
                self._conn = MessageSocket(sock)
                self.contact = self.contact.on_connecting(now)
                return
            if sock is not None:
                sock.close()
        self._drop(os.strerror(code) if code > 0 else "its address can't be resolved", now, code)

    def _drop(self, reason: str, now: float, code: int = 0) -> None:
        """Close the connection, if there is one, and let `contact` note why. `code`: errno, if the connection could not
        be made."""
        if self._conn is not None:
            self._conn.close()
        self._conn = self._handshake = self._orders = self._answers = None
        self.contact = self.contact.on_break(reason, now, is_refused=code == errno.ECONNREFUSED)

    def exchange(self, readable: Sequence[Pollable], writable: Sequence[Pollable], now: float) -> list[Json]:
        """Receive and send what is possible now, without waiting, and return the messages received. A connection that
        breaks is dropped, and made again by a later `step`."""
        messages: list[Json] = []
        conn = self._conn
        if conn is None:
            return messages
        try:
            if self.contact.stage is Stage.CONNECTING and conn in writable:
                code = conn.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    self._drop(os.strerror(code), now, code)
                    return messages
                self.contact = self.contact.on_taken()
            if conn in readable:
                for kind, payload in conn.receive():
                    self._on_message(conn, decode_json(payload) if kind == b"J" else {}, messages, now)
            if self.contact.stage is not Stage.CONNECTING:
                conn.flush()
        except (ConnectionBroken, FrameError, HandshakeError) as broken:
            # A supervisor challenges whom it accepts. What accepts for one that is gone closes the connection.
            is_gone = self.contact.stage is Stage.UNANSWERED and self._handshake is None
            self._drop(str(broken), now, errno.ECONNREFUSED if is_gone else 0)
        return messages

    def _on_message(self, conn: MessageSocket, received: Json, messages: list[Json], now: float) -> None:
        if self.contact.is_up:
            if self._orders is not None:
                self._check_order(self._orders, received, now)
            self.contact = self.contact.on_message(now)
            messages.append(received)
            return
        try:
            if self._handshake is None:
                refused = [at for at in self._refused_at if now - at < REFUSALS_KEPT]
                identity = {**self._identity, "refused": len(refused)} if refused else self._identity
                self._handshake = ClientHandshake(self._token, RANKS, **identity)
                conn.send(encode_json(self._handshake.hello(received)))
                return
            self._handshake.check(received)
        except HandshakeError as error:
            self.contact = self.contact.on_stranger()
            raise ConnectionBroken(f"it is not the supervisor of this run: {error}") from None
        conn.reader.max_frame = MAX_FRAME
        if self._takes_orders:
            self._orders, self._answers = self._handshake.order_proof(), self._handshake.order_proof(ANSWERS)
        self._handshake = None
        self.contact = self.contact.on_welcome(now)
        self._resume(received)

    def _check_order(self, orders: OrderProof, received: Json, now: float) -> None:
        try:
            orders.check(received)
        except HandshakeError:
            self._refused_at = [*self._refused_at[-REFUSED_COUNTED:], now]
            raise


class CommandStream:
    def __init__(self, pipe: IO[bytes], buffer: OutputBuffer) -> None:
        self.name = SUFFIXES[buffer.stream]
        self.number: int = pipe.fileno()
        self.buffer = buffer
        self.open = True
        self.tail = b""
        self.read_at = 0.0
        self._was_read_at = 0.0
        self._pipe = pipe
        os.set_blocking(self.number, False)

    def read_output(self, now: float) -> None:
        """Read what the pipe has into the buffer. At the end of the command's output, close the stream.

        `read_at` then says when to read next, because each read of a few bytes costs as much as a large one.
        """
        try:
            data = os.read(self.number, READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        if len(data) < READ_SIZE // 2 and not data.endswith(b"\n"):
            time.sleep(LINE_END_WAIT)
            with contextlib.suppress(OSError):
                data += os.read(self.number, READ_SIZE)
        self.buffer.put(data)
        self.tail = (self.tail + data)[-_TAIL:]
        is_frequent = now - self._was_read_at < 2 * READ_INTERVAL
        self.read_at = now + READ_INTERVAL if is_frequent and len(data) < READ_SIZE // 2 else 0.0
        self._was_read_at = now

    def close(self) -> None:
        """Close the pipe. The buffer keeps what was read. A second call does no harm."""
        if self.open:
            self.open = False
            self._pipe.close()
