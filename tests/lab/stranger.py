"""A stranger at the supervisor's port, run with `python3 -` on another host: `ADDRESS PORT SECONDS PROOFS`.

PROOFS is a JSON list of messages of a rank that were valid for another connection, or are of another role. It prints
how many connections each kind made.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import threading
import time
from collections import Counter

address, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
messages = [json.dumps(message).encode() for message in json.loads(sys.argv[4])]
until = time.monotonic() + seconds
made: Counter[str] = Counter()


def frame(payload: bytes, kind: bytes = b"J") -> bytes:
    return struct.pack("!Ic", len(payload), kind) + payload


def connect(name: str) -> socket.socket:
    connection = socket.create_connection((address, port), 2)
    connection.settimeout(1)
    made[name] += 1
    return connection


def flood() -> None:
    held: list[socket.socket] = []
    while time.monotonic() < until:
        try:
            held.append(connect("flood"))
        except OSError:
            time.sleep(0.05)
        if len(held) > 700:
            held.pop(0).close()


def slow() -> None:
    while time.monotonic() < until:
        with contextlib.suppress(OSError), connect("slow") as connection:
            for byte in frame(messages[0]):
                connection.sendall(bytes([byte]))
                time.sleep(0.2)


def send(name: str, *pieces: bytes) -> None:
    while time.monotonic() < until:
        for piece in pieces:
            with contextlib.suppress(OSError), connect(name) as connection:
                connection.recv(4096)
                connection.sendall(piece)
                while connection.recv(4096):
                    pass


threads = [threading.Thread(target=work, daemon=True) for work in (flood, slow, slow)]
threads += [
    threading.Thread(target=send, args=arguments, daemon=True)
    for arguments in (
        ("truncated", frame(messages[0])[:-3], b"\0\0", frame(b"{")),
        ("giant", b"\xff\xff\xff\xffJ" + b"x" * 65536, frame(b"[" * 100000), frame(b"x" * 4000, b"O")),
        ("forged", *map(frame, messages), *(frame(message) * 20 for message in messages)),
    )
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(max(0.0, until - time.monotonic()) + 5)
print(json.dumps(made))
