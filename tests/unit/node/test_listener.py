"""The rules of a port: which connection is closed if there are too many, and which client is handed over."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from ipexctl.node.common import listener
from ipexctl.node.common import listener as rules
from ipexctl.node.common.frames import FrameReader, decode_json, encode_json
from ipexctl.node.common.listener import Listener
from ipexctl.node.common.token_proof import (
    FILES,
    ClientHandshake,
    ConnectionBroken,
    MessageSocket,
    ServerHandshake,
    ready,
)

TOKEN = "0123456789abcdef" * 4


class Port:
    """A port of this machine; clients may have any address of 127.0.0.0/8."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.socket = listener.listen("127.0.0.1")
        self.clients: list[MessageSocket] = []
        self.refuse = False
        self.listener = Listener([self.socket], TOKEN, FILES, self.take)
        stack.callback(self.listener.close)

    def take(self, conn: MessageSocket, handshake: ServerHandshake, _: dict[str, Any]) -> None:
        if self.refuse:
            raise ConnectionBroken("not now")
        conn.send(encode_json(handshake.welcome()))
        conn.flush()
        self.clients.append(conn)
        self.stack.callback(conn.close)

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        port = self.socket.getsockname()[1]
        return self.stack.enter_context(socket.create_connection(("127.0.0.1", port), 5, (source, 0)))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            readable, _ = ready(self.listener.readers(), self.listener.writers(), 0.2)
            self.listener.handle_ready(readable)

    def accept(self, source: str = "127.0.0.1") -> socket.socket:
        conn = self.connect(source)
        self.step()
        return conn


@pytest.fixture
def port() -> Iterator[Port]:
    with ExitStack() as stack:
        yield Port(stack)


def messages_of(conn: socket.socket) -> list[str]:
    """The types of the messages until the server closes the connection, or sends nothing."""
    conn.settimeout(0.2)
    received = b""
    with suppress(ConnectionResetError):
        while True:
            try:
                data = conn.recv(4096)
            except TimeoutError:
                return [*kinds(received), "open"]
            if not data:
                return kinds(received)
            received += data
    return kinds(received)


def kinds(received: bytes) -> list[str]:
    return [decode_json(payload)["t"] for _, payload in FrameReader().feed(received)]


def hello(conn: socket.socket, token: str = TOKEN) -> bytes:
    ((_, payload),) = FrameReader().feed(conn.recv(4096))
    return encode_json(ClientHandshake(token, FILES).hello(decode_json(payload)))


def test_client_with_the_token_is_handed_over_and_another_is_refused(port: Port) -> None:
    good, bad = port.accept(), port.accept()
    good.sendall(hello(good))
    bad.sendall(hello(bad, "f" * 64))
    port.step(2)
    assert [conn.sock.getpeername() for conn in port.clients] == [good.getsockname()]
    assert messages_of(good) == ["welcome", "open"]
    assert messages_of(bad) == ["refused"]
    assert port.listener.readers() == [port.socket]


def test_client_that_sends_more_than_its_hello_is_dropped(port: Port) -> None:
    for more in (b"x", encode_json({"t": "hello"})):
        conn = port.accept()
        conn.sendall(hello(conn) + more)
        port.step()
        assert messages_of(conn) == []
    assert port.clients == []


def test_oldest_connection_of_an_address_is_closed_first(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_OF_ONE_ADDRESS", 2)
    port.listener.expected = 1
    other = port.accept("127.0.0.2")
    conns = [port.accept() for _ in range(5)]
    assert [messages_of(conn) for conn in conns] == [["challenge"]] * 2 + [["challenge", "open"]] * 3
    assert messages_of(other) == ["challenge", "open"]


@pytest.mark.parametrize("is_authenticated", [False, True])
def test_strangers_are_closed_before_planned_hosts(
    port: Port, monkeypatch: pytest.MonkeyPatch, is_authenticated: bool
) -> None:
    """An address that has proven the token once counts as that of a planned host."""
    monkeypatch.setattr(rules, "MAX_UNAUTHENTICATED", 4)
    if is_authenticated:
        first = port.accept("127.0.0.9")
        first.sendall(hello(first))
        port.step()
    else:
        port.listener.addresses.add("127.0.0.9")
    planned = port.accept("127.0.0.9")
    strangers = [port.accept(f"127.0.0.{number}") for number in range(2, 8)]
    assert [messages_of(conn)[-1] for conn in strangers] == ["challenge"] * 3 + ["open"] * 3
    planned.sendall(hello(planned))
    port.step()
    assert messages_of(planned) == ["welcome", "open"]


def test_reply_that_has_arrived_counts_before_new_connections(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_OF_ONE_ADDRESS", 4)
    conn = port.accept()
    conn.sendall(hello(conn))
    strangers = [port.connect() for _ in range(40)]
    port.step(3)
    assert messages_of(conn) == ["welcome", "open"]
    assert len([stranger for stranger in strangers if messages_of(stranger)[-1] == "open"]) == 4


def test_connection_is_closed_after_its_time_however_much_it_sends(port: Port) -> None:
    conn = port.accept()
    conn.sendall(b"\0\0\1\0J ")
    port.step()
    (waiting,) = port.listener._unauthenticated
    port.listener.drop_late(waiting.began + rules.AUTHENTICATION_TIME - 0.1)
    assert messages_of(conn) == ["challenge", "open"]
    port.listener.drop_late(waiting.began + rules.AUTHENTICATION_TIME + 0.1)
    assert messages_of(conn) == []


def test_client_that_is_not_taken_is_closed(port: Port) -> None:
    port.refuse = True
    conn = port.accept()
    conn.sendall(hello(conn))
    port.step()
    assert messages_of(conn) == []
    assert port.listener.readers() == [port.socket]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED])
def test_oldest_stranger_is_closed_if_no_file_descriptor_is_left(
    port: Port, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    port.listener.addresses.add("127.0.0.9")
    planned, stranger = port.accept("127.0.0.9"), port.accept("127.0.0.2")

    class Full(socket.socket):
        def accept(self) -> Any:
            raise OSError(code, "full")

    with Full(fileno=socket.dup(port.socket.fileno())) as full:
        port.listener._accept(full)
    assert messages_of(planned) == ["challenge", "open"]
    assert messages_of(stranger) == ["challenge", *(["open"] if code == errno.ECONNABORTED else [])]


def test_closed_listener_closes_all(port: Port) -> None:
    conn, address = port.accept(), port.socket.getsockname()
    port.listener.close()
    assert messages_of(conn) == ["challenge"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 5)
