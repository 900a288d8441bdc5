"""One end of a non-blocking connection with frames in and out, and the wait for many of them at once."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections import deque
from typing import Any, Iterator, Sequence, Union

from ipexctl.node.common.frames import Frame, FrameReader, encode_json
from ipexctl.node.common.handshake import MAX_FRAME as MAX_HANDSHAKE_FRAME

_buffer = bytearray(1 << 18)
"""Shared by all connections: allocating one for each read costs 20 us, because it is mapped and unmapped."""


class ConnectionBroken(Exception):
    """The text is the reason."""


def message(t: str, **fields: Any) -> bytes:
    return encode_json({"t": t, **fields})


class Link:
    def __init__(self, sock: socket.socket, address: str = "") -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = address
        self.sock = sock
        self.reader = FrameReader(MAX_HANDSHAKE_FRAME)
        self.pending = 0
        self.began = self.last_received = time.monotonic()
        self._out: deque[memoryview] = deque()

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, data: bytes) -> None:
        self._out.append(memoryview(data))
        self.pending += len(data)

    def flush(self) -> None:
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
        """Received frames; raises ConnectionBroken if the connection is closed, FrameError if it is corrupt."""
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
        self.sock.close()


Pollable = Union[int, socket.socket, Link]


def wake_on_signal() -> int:
    """A descriptor that becomes readable on a handled signal, to wake `ready`."""
    wake, wakeup = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    return wake


def ready(
    readers: Sequence[Pollable], writers: Sequence[Pollable], timeout: float
) -> tuple[list[Pollable], list[Pollable]]:
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
