"""The socket of an ssh connection: it reads ahead, and its time limit or its close ends a read."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from ipexctl.remote.tcp import TunedSocket


@pytest.fixture
def ends() -> Iterator[tuple[TunedSocket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, TunedSocket() as near:
        near.connect(server.getsockname())
        far, _ = server.accept()
        with far:
            yield near, far


def test_a_message_is_read_in_pieces_of_any_size(ends: tuple[TunedSocket, socket.socket]) -> None:
    near, far = ends
    sent = bytes(range(256)) * 1000
    far.sendall(sent)
    far.shutdown(socket.SHUT_WR)
    pieces = [near.recv(size) for size in (1, 16, 0, 300)]
    assert [len(piece) for piece in pieces] == [1, 16, 0, 300]
    while piece := near.recv(20000):
        pieces.append(piece)
    assert b"".join(pieces) == sent
    assert near.recv(10) == b""


def test_a_read_and_a_write_end_at_the_time_limit(ends: tuple[TunedSocket, socket.socket]) -> None:
    near, far = ends
    near.settimeout(0.05)
    with pytest.raises(TimeoutError):
        near.recv(1)
    far.sendall(b"x")
    assert near.recv(1) == b"x"
    with pytest.raises((TimeoutError, BlockingIOError)):
        while True:
            near.send(bytes(1 << 20))


def test_a_close_ends_the_read_of_another_thread(ends: tuple[TunedSocket, socket.socket]) -> None:
    near, _ = ends
    near.settimeout(60)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(near.recv(1)), daemon=True)
    reader.start()
    reader.join(0.2)
    near.close()
    reader.join(10)
    assert received == [b""]
