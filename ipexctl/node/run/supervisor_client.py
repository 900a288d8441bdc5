"""A rank's ends: its connection to the supervisor, made again where it breaks, and the two streams of its command.

`protocol.py` says what a frame is; `output_buffer.py` keeps what isn't acknowledged yet.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Callable, Dict

from ipexctl.node.run import protocol

if TYPE_CHECKING:
    from typing import IO

    from ipexctl.node.run.output_buffer import OutputBuffer

SILENT = 12.0
"""Seconds of silence until a connection is made anew."""
PROVE = 5.0
"""Seconds for a connection to be made and proved."""
AGAIN = 0.5
PAUSE = 0.015
"""Seconds between two reads of a stream that has little: a line a read would cost a core."""
READ = 1 << 16
ROOM = 1 << 19
Json = Dict[str, Any]


class SupervisorClient:
    """The way to the supervisor: made, proved, and made again where it breaks."""

    def __init__(self, job: Json, who: Json, resume: Callable[[Json], None]) -> None:
        self.is_up = False
        self.heard = time.monotonic()
        """When the supervisor itself was last heard."""
        self.why = "nothing was heard"
        self.is_refused = False
        """Nobody listens there."""
        self._link: protocol.Link | None = None
        self._connecting = False
        self._began = 0.0
        self._retry_at = 0.0
        self._token = job["token"]
        self._where = (job["supervisor"]["address"], int(job["supervisor"]["port"]))
        self._who = who
        self._resume = resume
        self._expected = ""

    def readers(self) -> list[Any]:
        return [self._link] if self._link is not None and not self._connecting else []

    def writers(self) -> list[Any]:
        return [self._link] if self._link is not None and (self._connecting or self._link.pending) else []

    @property
    def room(self) -> int:
        return ROOM - self._link.pending if self._link is not None and self.is_up else 0

    def send_message(self, t: str, **fields: Any) -> None:
        if self._link is not None and self.is_up:
            self._link.send(protocol.message(t, **fields))

    def send(self, data: bytes) -> None:
        if self._link is not None:
            self._link.send(data)

    def step(self, now: float) -> None:
        if self._link is None:
            if now >= self._retry_at:
                self._connect(now)
        elif not self.is_up and now - self._began > PROVE:
            self._drop("the supervisor doesn't answer")
        elif self.is_up and now - self.heard > SILENT:
            self._drop("the supervisor is silent")

    def _connect(self, now: float) -> None:
        self._began = now
        sock = None
        try:
            family, kind, proto, _, place = socket.getaddrinfo(*self._where, type=socket.SOCK_STREAM)[0]
            sock = socket.socket(family, kind, proto)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = sock.connect_ex(place)
        except OSError as error:
            code = error.errno or errno.EIO
        self.is_refused = code == errno.ECONNREFUSED
        if sock is not None and code in (0, errno.EINPROGRESS):
            self._link = protocol.Link(sock)
            self._connecting = True
            return
        if sock is not None:
            sock.close()
        self._drop(os.strerror(code) if code > 0 else "its address can't be resolved")

    def _drop(self, why: str) -> None:
        self.why = why
        if self._link is not None:
            self._link.close()
        self._link = None
        self.is_up = self._connecting = False
        self._expected = ""
        self._retry_at = time.monotonic() + AGAIN

    def work(self, readable: list[Any], writable: list[Any]) -> list[Json]:
        """What the supervisor says to us."""
        said: list[Json] = []
        link = self._link
        if link is None:
            return said
        try:
            if self._connecting and link in writable:
                code = link.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                self.is_refused = code == errno.ECONNREFUSED
                if code:
                    raise protocol.ConnectionBroken(os.strerror(code))
                self._connecting = False
            if link in readable:
                for kind, payload in link.receive():
                    self._on_message(link, protocol.read_message(payload) if kind == b"J" else {"t": ""}, said)
            if not self._connecting:
                link.flush()
        except protocol.ConnectionBroken as broken:
            self._drop(str(broken))
        return said

    def _on_message(self, link: protocol.Link, message: Json, said: list[Json]) -> None:
        if self.is_up:
            self.heard = time.monotonic()
            said.append(message)
            return
        theirs = message.get("nonce")
        if message["t"] == "challenge" and isinstance(theirs, str) and not self._expected:
            ours = os.urandom(16).hex()  # of this connection alone: what was said on another proves nothing here
            said_by_both = (self._who["rank"], theirs[:64], ours)
            self._expected = protocol.proof(self._token, "supervisor", *said_by_both)
            proof = protocol.proof(self._token, "rank", *said_by_both)
            link.send(protocol.message("hello", nonce=ours, proof=proof, **self._who))
        elif message["t"] == "welcome" and protocol.is_proof(message.get("proof"), self._expected):
            link.most = protocol.MOST
            self._expected = ""
            self.is_up = True
            self.heard = time.monotonic()
            self._resume(message)
        else:
            raise protocol.ConnectionBroken("who answers there isn't this run's supervisor")


class Stream:
    """One of the command's two streams: its pipe, until it ends, and its outbox."""

    def __init__(self, kind: bytes, pipe: IO[bytes], box: OutputBuffer) -> None:
        self.kind = kind
        self.number: int = pipe.fileno()
        self.box = box
        self.open = True
        self.read_at = 0.0
        self._pipe = pipe
        os.set_blocking(self.number, False)

    def read(self, now: float) -> None:
        try:
            data = os.read(self.number, READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self.box.put(data)
        self.read_at = now + PAUSE if len(data) < READ // 2 else 0.0

    def close(self) -> None:
        if self.open:
            self.open = False
            self._pipe.close()
