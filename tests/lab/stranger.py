"""A program without a token that fills ports with connections, and lies on some of them.

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
import time
from contextlib import suppress
from typing import Any

_HALF_FRAME = b"\0\0\1\0J{"
_HUGE = b"\xff" * 70_000


class Port:
    def __init__(self, address: str, port: int, source: str, count: int) -> None:
        self.target, self.source, self.count = (address, port), source, count
        self.held = 0
        self.connections = 0
        self.received: set[str] = set()

    def connect(self, replays: list[bytes]) -> socket.socket:
        conn = socket.socket()
        conn.setblocking(True)
        conn.settimeout(0.2)
        try:
            conn.bind((self.source, 0))
            conn.connect(self.target)
            self.connections += 1
            lies = (b"", _HALF_FRAME, (os.urandom(200), _HUGE)[self.connections // 4 % 2], *replays[-1:])
            conn.setblocking(False)
            with suppress(OSError):
                conn.send(lies[self.connections % len(lies)])
        except OSError:
            conn.close()
            raise
        return conn

    def receive(self, data: bytes) -> None:
        while len(data) >= 5:
            size = int.from_bytes(data[:4], "big")
            with suppress(ValueError, TypeError, KeyError):
                self.received.add(json.loads(data[5 : 5 + size])["t"])
            data = data[5 + size :]


def main() -> None:
    os.set_blocking(0, False)
    ports: list[Port] = []
    replays: list[bytes] = []
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(0.02):
                if key.fileobj == 0:
                    data = os.read(0, 1 << 16)
                    if not data:
                        report(ports)
                        return
                    *lines, text = (text + data).split(b"\n")
                    for line in lines:
                        command, *words = line.decode().split()
                        if command == "fill":
                            ports.append(Port(words[0], int(words[1]), words[2], int(words[3])))
                        else:
                            replays.append(bytes.fromhex(words[0]))
                    continue
                read(selector, key)
            for port in ports:
                fill(selector, port, replays)


def read(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    conn, port = key.fileobj, key.data
    assert isinstance(conn, socket.socket)
    with suppress(OSError):
        data: Any = conn.recv(1 << 16)
        if data:
            port.receive(data)
            return
    selector.unregister(conn)
    conn.close()
    port.held -= 1


def fill(selector: selectors.BaseSelector, port: Port, replays: list[bytes]) -> None:
    for _ in range(min(10, port.count - port.held)):
        try:
            conn = port.connect(replays)
        except OSError:  # the port is closed by now
            time.sleep(0.002)
            return
        selector.register(conn, selectors.EVENT_READ, port)
        port.held += 1


def report(ports: list[Port]) -> None:
    found: dict[str, dict[str, Any]] = {}
    for port in ports:
        row = found.setdefault(f"{port.target[0]}:{port.target[1]}", {"connections": 0, "received": []})
        row["connections"] += port.connections
        row["received"] = sorted({*row["received"], *port.received})
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
