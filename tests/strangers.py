"""Programs without a token that fill ports with connections. Called by its path, with commands on stdin, it also lies:

    fill ADDRESS PORT SOURCE COUNT        keep so many connections open from that address, and replace those closed
    replay HEX                            send these bytes on one of four new connections, too
    the end of stdin                      prints {"ADDRESS:PORT": {"connections": N, "received": [type of message, …]}}

One of four connections sends nothing, one half a frame, one bytes at random or a huge line, one a recorded hello.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

_HALF_FRAME = b"\0\0\1\0J{"
_HUGE = b"\xff" * 70_000
_PACE = (5, 0.05)
"""New connections at once at a port and seconds in between, so that all that a network carries can be recorded."""


class UnauthenticatedClients:
    """Keep many connections from one address open, and replace those that are closed.

    `pace`: how many are opened at once, and the seconds until the next ones.
    """

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        count: int,
        receive: Callable[[bytes], None] = lambda _: None,
        pace: tuple[int, float] = (1000, 0.0),
    ) -> None:
        self._over = threading.Event()
        self._open, self._count, self._receive = connect, count, receive
        self._at_once, self._pause = pace
        self._thread = threading.Thread(target=self._connect, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def __enter__(self) -> None:
        self.start()
        time.sleep(1.0)

    def __exit__(self, *_: object) -> None:
        self.end()

    def _connect(self) -> None:
        with ExitStack() as stack, selectors.DefaultSelector() as held:
            while not self._over.wait(self._pause):
                for _ in range(min(self._at_once, self._count - len(held.get_map()))):
                    try:
                        stranger = self._open()
                    except OSError:  # the port is closed by now
                        break
                    held.register(stack.enter_context(stranger), selectors.EVENT_READ)
                for key, _ in held.select(0.02):
                    assert isinstance(key.fileobj, socket.socket)
                    with suppress(OSError):
                        if data := key.fileobj.recv(1 << 16):
                            self._receive(data)
                            continue
                    held.unregister(key.fileobj)
                    key.fileobj.close()


class Liars:
    """All that fill one port."""

    def __init__(self, replays: list[bytes]) -> None:
        self._replays = replays
        self.connections = 0
        self.received: set[str] = set()

    def connect(self, target: tuple[str, int], source: str) -> socket.socket:
        conn = socket.create_connection(target, 0.2, (source, 0))
        self.connections += 1
        lies = (b"", _HALF_FRAME, (os.urandom(200), _HUGE)[self.connections // 4 % 2], *self._replays[-1:])
        conn.setblocking(False)
        with suppress(OSError):
            conn.send(lies[self.connections % len(lies)])
        return conn

    def receive(self, data: bytes) -> None:
        while len(data) >= 5:
            size = int.from_bytes(data[:4], "big")
            with suppress(ValueError, TypeError, KeyError):
                self.received.add(json.loads(data[5 : 5 + size])["t"])
            data = data[5 + size :]


def main() -> None:
    liars: dict[tuple[str, int], Liars] = {}
    clients: list[UnauthenticatedClients] = []
    replays: list[bytes] = []
    for line in sys.stdin:
        command, *words = line.split()
        if command == "replay":
            replays.append(bytes.fromhex(words[0]))
            continue
        target, source = (words[0], int(words[1])), words[2]
        of_port = liars.setdefault(target, Liars(replays))
        clients.append(
            UnauthenticatedClients(partial(of_port.connect, target, source), int(words[3]), of_port.receive, _PACE)
        )
        clients[-1].start()
    for each in clients:
        each.end()
    found = {
        f"{address}:{port}": {"connections": each.connections, "received": sorted(each.received)}
        for (address, port), each in liars.items()
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
