"""A rank's connection to the supervisor, which reconnects, and the two output streams of its command.

In come the supervisor's addresses and the run's token; out come messages, and the bytes of the command's pipes in their
buffers. The rules: both ends prove the token before anything else is said; a connection that is silent is replaced,
and nothing that was sent over it is lost, as the supervisor says how much it has. `messages.py` lists the messages;
`output_buffer.py` keeps output that is not acknowledged yet.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from typing import IO, TYPE_CHECKING, Any, Callable, Sequence

from ipexctl.node.common import sockets
from ipexctl.node.common.frames import MAX_FRAME, SUFFIXES, FrameError, decode_json, encode_json
from ipexctl.node.common.handshake import RANKS, ClientHandshake, HandshakeError
from ipexctl.node.common.limits import SUPERVISOR_BUSY
from ipexctl.node.common.link import ConnectionBroken, Link, Pollable, message

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json
    from ipexctl.node.run.output_buffer import OutputBuffer

SILENCE_LIMIT = 12.0
"""Seconds of silence until the rank reconnects."""
CONNECT_LIMIT = 5.0
"""Seconds to connect and authenticate."""
SUSPENDED = 8.0
"""Like `rank_connections.SUSPENDED`, for a rank: it may look at the time only when it reports, every four seconds."""
RETRY_INTERVAL = 0.5
READ_INTERVAL = 0.015
"""Seconds between two reads of a stream with little output: one read per line would use a whole core."""
LINE_END_WAIT = 0.001
"""Seconds for the end of a line, which print() writes on its own: it is then sent with the line."""
READ_SIZE = 1 << 16
MAX_PENDING = 1 << 19


class SupervisorClient:
    """An authenticated connection to the supervisor; it reconnects when it breaks.

    `addresses` are hosts with ports. The first is local to node0, and is refused at once on other nodes. It is not used
    again after a connection there that was not authenticated.
    """

    def __init__(
        self, addresses: Sequence[tuple[str, int]], token: str, identity: Json, resume: Callable[[Json], None]
    ) -> None:
        self.is_up = False
        self.last_received = time.monotonic()
        """When the last message of the supervisor arrived."""
        self.connected_at = float("-inf")
        """When its port last had taken a connection, which the kernel does while the supervisor's process exists."""
        self.why = "it has not answered"
        self.is_refused = False
        """The supervisor's port is closed."""
        self._link: Link | None = None
        self._connecting = False
        self._began = 0.0
        self._retry_at = 0.0
        self._checked_at = time.monotonic()
        self._addresses = addresses
        self._token = token
        self._identity = identity
        self._resume = resume
        self._handshake: ClientHandshake | None = None
        """Between the challenge and the welcome of a connection."""

    def readers(self) -> list[Link]:
        return [self._link] if self._link is not None and not self._connecting else []

    def writers(self) -> list[Link]:
        return [self._link] if self._link is not None and (self._connecting or self._link.pending) else []

    @property
    def _waits(self) -> bool:
        """Whether it has a connection that is not answered, at the only address. More would fill the port's queue."""
        return not self._connecting and len(self._addresses) == 1

    @property
    def room(self) -> int:
        return MAX_PENDING - self._link.pending if self._link is not None and self.is_up else 0

    def send_message(self, t: str, **fields: Any) -> None:
        if self._link is not None and self.is_up:
            self._link.send(message(t, **fields))

    def send(self, data: bytes) -> None:
        if self._link is not None:
            self._link.send(data)

    def notice_suspension(self, now: float) -> None:
        """While this process was itself suspended, it could not receive what the supervisor sent."""
        if now - self._checked_at > SUSPENDED:
            self.last_received = now
        self._checked_at = now

    def step(self, now: float) -> None:
        if self._link is None:
            if now >= self._retry_at:
                self._connect(now)
        elif not self.is_up:
            if not self._connecting:
                self.connected_at = now
            if now - self._began > (SUPERVISOR_BUSY if self._waits else CONNECT_LIMIT):
                self._drop("the supervisor doesn't answer")
        elif self.is_up and now - self.last_received > SILENCE_LIMIT:
            self._leave(self._link)

    def _connect(self, now: float) -> None:
        self._began = now
        code = 0
        for address in self._addresses:
            sock = None
            try:
                family, socket_address = sockets.resolve(*address)
                sock = socket.socket(family, socket.SOCK_STREAM)
                sock.setblocking(False)
                code = sock.connect_ex(socket_address)
            except OSError as error:
                code = error.errno or errno.EIO
            if sock is not None and code in (0, errno.EINPROGRESS):
                self.is_refused = False
                self._link = Link(sock)
                self._connecting = True
                return
            if sock is not None:
                sock.close()
        self.is_refused = code == errno.ECONNREFUSED
        self._drop(os.strerror(code) if code > 0 else "its address can't be resolved")

    def _leave(self, link: Link) -> None:
        """Drop a connection that works: without a message the supervisor takes this process for killed."""
        link.send(message("reconnecting"))
        with contextlib.suppress(ConnectionBroken):
            link.flush()
        self._drop("the supervisor is silent")

    def _drop(self, why: str) -> None:
        self.why = why
        if self._link is not None:
            self._link.close()
            self._addresses = self._addresses if self.is_up else self._addresses[-1:]
        self._link = None
        self.is_up = self._connecting = False
        self._handshake = None
        self._retry_at = time.monotonic() + RETRY_INTERVAL

    def exchange(self, readable: Sequence[Pollable], writable: Sequence[Pollable]) -> list[Json]:
        """Send and receive what is possible now; returns the supervisor's messages."""
        messages: list[Json] = []
        link = self._link
        if link is None:
            return messages
        try:
            if self._connecting and link in writable:
                code = link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                self.is_refused = code == errno.ECONNREFUSED
                if code:
                    raise ConnectionBroken(os.strerror(code))
                self._connecting = False
            if link in readable:
                for kind, payload in link.receive():
                    self._on_message(link, decode_json(payload) if kind == b"J" else {}, messages)
            if not self._connecting:
                link.flush()
        except (ConnectionBroken, FrameError) as broken:
            self._drop(str(broken))
        return messages

    def _on_message(self, link: Link, received: Json, messages: list[Json]) -> None:
        if self.is_up:
            self.last_received = time.monotonic()
            messages.append(received)
            return
        try:
            if self._handshake is None:
                self._handshake = ClientHandshake(self._token, RANKS, **self._identity)
                link.send(encode_json(self._handshake.hello(received)))
                return
            self._handshake.check(received)
        except HandshakeError as error:
            self.connected_at = float("-inf")
            raise ConnectionBroken(f"it is not the supervisor of this run: {error}") from None
        link.reader.max_frame = MAX_FRAME
        self._handshake = None
        self.is_up = True
        self.last_received = time.monotonic()
        self._resume(received)


class CommandStream:
    """One of the command's two output streams: its pipe, until it ends, and its buffer."""

    def __init__(
        self, pipe: IO[bytes], buffer: OutputBuffer, on_data: Callable[[str, bytes, float], None] | None = None
    ) -> None:
        """`on_data` gets the stream's name, each piece of output, and the time."""
        self.name = SUFFIXES[buffer.stream]
        self._on_data = on_data
        self.number: int = pipe.fileno()
        self.buffer = buffer
        self.open = True
        self.read_at = 0.0
        self._was_read_at = 0.0
        self._pipe = pipe
        os.set_blocking(self.number, False)

    def read_output(self, now: float) -> None:
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
        if self._on_data is not None:
            self._on_data(self.name, data, now)
        is_frequent = now - self._was_read_at < 2 * READ_INTERVAL
        self.read_at = now + READ_INTERVAL if is_frequent and len(data) < READ_SIZE // 2 else 0.0
        self._was_read_at = now

    def close(self) -> None:
        if self.open:
            self.open = False
            self._pipe.close()
