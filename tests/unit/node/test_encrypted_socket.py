"""Connections that are encrypted: what crosses, whose certificate counts, and how the ends end."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_helpers import wait_until
from ipexctl.node.common.encrypted_socket import client_context, encrypt
from ipexctl.remote.srun import make_certificate

CONTEXT, FINGERPRINT = make_certificate()


class Wire:
    """Two connected sockets with a reader between them, who keeps all bytes."""

    def __init__(self) -> None:
        self.client, self._left = socket.socketpair()
        self._right, self.server = socket.socketpair()
        self.seen = bytearray()
        for source, target in ((self._left, self._right), (self._right, self._left)):
            threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # an end was closed
            while data := source.recv(1 << 16):
                self.seen += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def encrypted(self, fingerprint: str = FINGERPRINT) -> tuple[socket.socket, socket.socket]:
        with ThreadPoolExecutor(1) as pool:
            server = pool.submit(encrypt, self.server, CONTEXT, seconds=5)
            client = encrypt(self.client, client_context(), fingerprint=fingerprint, seconds=5)
            return client, server.result()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    for end in (made.client, made.server):
        end.close()


def test_bytes_arrive_both_ways_and_cannot_be_read_between(wire: Wire) -> None:
    client, server = wire.encrypted()
    data = b"the secret of this call" * 200_000

    def send(end: socket.socket) -> None:
        end.sendall(data)
        end.shutdown(socket.SHUT_WR)

    def received(end: socket.socket) -> bytes:
        return b"".join(iter(lambda: end.recv(1 << 16), b""))

    with client, server, ThreadPoolExecutor(4) as pool:
        got = [pool.submit(received, end) for end in (client, server)]
        pool.submit(client.sendall, data)
        server.sendall(data)
        wait_until(lambda: len(wire.seen) > 2 * len(data))
        client.shutdown(socket.SHUT_WR)
        assert got[1].result(20) == data
        assert got[0].result(20) == data
    assert b"secret" not in wire.seen


def test_another_certificate_is_refused(wire: Wire) -> None:
    with pytest.raises(OSError, match="another certificate"):
        wire.encrypted("0" * 64)


@pytest.mark.parametrize("said", [b"", b'{"call": "guessed-1", "token": "x"}\n', os.urandom(200)])
def test_a_peer_that_speaks_no_tls_is_refused(said: bytes) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(said)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(OSError):  # TLS has many
        encrypt(ours, CONTEXT, seconds=5)
    assert ours.fileno() == -1
    theirs.close()


def test_a_silent_peer_is_not_waited_for(wire: Wire) -> None:
    with pytest.raises(TimeoutError):
        encrypt(wire.client, client_context(), fingerprint=FINGERPRINT, seconds=0.2)


def test_changed_bytes_end_the_connection() -> None:
    left, right = socket.socketpair()
    with ThreadPoolExecutor(1) as pool:
        server = pool.submit(encrypt, right, CONTEXT, seconds=5)
        client = encrypt(left, client_context(), fingerprint=FINGERPRINT, seconds=5)
    with client, server.result() as other:
        left.sendall(b"\x17\x03\x03\x00\x20" + os.urandom(32))  # a record that nobody has sealed
        assert other.recv(100) == b""


def test_it_encrypts_for_who_knows_its_fingerprint_and_for_nobody_else() -> None:
    context, fingerprint = make_certificate()
    assert make_certificate()[1] != fingerprint
    for known in (fingerprint, fingerprint[::-1]):
        left, right = socket.socketpair()
        with ThreadPoolExecutor(1) as pool:
            server = pool.submit(encrypt, left, context, seconds=5)
            if known == fingerprint:
                with encrypt(right, client_context(), fingerprint=known, seconds=5) as client, server.result() as end:
                    client.sendall(b"word")
                    assert end.recv(10) == b"word"
            else:
                with pytest.raises(OSError, match="certificate"):
                    encrypt(right, client_context(), fingerprint=known, seconds=5)
                assert server.exception() is None or isinstance(server.exception(), OSError)
