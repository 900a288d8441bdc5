"""The client of an ssh master's socket, against peers that break the protocol. Labs have real masters."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ipexctl.node.common.macos import peer_account
from ipexctl.remote import mux

pytestmark = pytest.mark.timeout(20)

HELLO, OPENED, EXIT, FAILED, ALIVE = 1, 0x80000006, 0x80000004, 0x80000003, 0x80000005


def message(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers) + 1}I", 4 * len(numbers), *numbers)


GOOD = message(HELLO, 4)


@pytest.fixture
def peer(tmp_path: Path) -> Callable[[bytes], str]:
    """The socket of a peer that sends these bytes, takes what it gets, and hangs up once it got everything."""

    def start(data: bytes) -> str:
        path = str(tmp_path / "socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with listener, connection, contextlib.suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

        threading.Thread(target=answer, daemon=True).start()
        return path

    return start


def run(path: str) -> mux.MuxProcess:
    process = mux.MuxProcess(path, "true", has_stdin=False)
    while process.poll() is None:
        pass
    process.close()
    return process


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        message(),
        message(HELLO),
        message(HELLO, 3),
        message(ALIVE, 0, 1),
        struct.pack(">I", 2**32 - 1) + bytes(1000),
        GOOD[:-1],
    ],
)
def test_a_socket_that_does_not_greet_as_a_master_is_refused(
    peer: Callable[[bytes], str], data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mux, "_ANSWER", 0.5)
    with pytest.raises((OSError, EOFError)):
        mux.MuxProcess(peer(data), "true", has_stdin=True)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (message(OPENED, 0, 7) + message(EXIT, 7, 3), 3),
        (message(OPENED, 0, 7) + message(EXIT, 7, 0), 0),
        (message(OPENED, 0, 7), 255),
        (message(OPENED, 0, 7) + message(EXIT, 7), 255),
        (message(OPENED, 0, 7) + message(EXIT), 255),
        (message(OPENED, 0, 7) + message(), 255),
        (message(OPENED, 0, 7) + struct.pack(">I", 3) + b"\0\0\0", 255),
        (message(OPENED, 0, 7) + message(EXIT, 8, 0), 255),
        (message(OPENED, 0, 7) + message(EXIT, 7, 256), 255),
        (message(OPENED, 0, 7) + message(ALIVE, 7, 0) + message(EXIT, 7, 0), 255),
        (message(OPENED, 0, 7) + message(FAILED, 0, 0), 255),
        (message(EXIT, 0, 0), 255),
        (struct.pack(">I", 1 << 20) + bytes(1 << 18), 255),
    ],
)
def test_only_a_whole_answer_in_its_order_is_an_exit_code(
    peer: Callable[[bytes], str], answer: bytes, code: int
) -> None:
    process = run(peer(GOOD + answer))
    assert (process.poll(), process.wait(), process.is_refused) == (code, code, False)


def test_a_refused_session_is_not_an_exit_code(peer: Callable[[bytes], str]) -> None:
    process = run(peer(GOOD + message(FAILED, 0, 0)))
    assert (process.poll(), process.is_refused) == (255, True)


@pytest.mark.parametrize(("account", "is_trusted"), [(0, True), (os.getuid(), True), (os.getuid() + 4711, False)])
def test_the_socket_of_another_account_gets_nothing(
    peer: Callable[[bytes], str], account: int, is_trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mux, "peer_account", lambda sock: account)
    assert mux.is_alive(peer(GOOD + message(ALIVE, 0, 1))) == is_trusted


def test_the_account_at_the_other_end_is_known() -> None:
    one, two = socket.socketpair()
    with one, two:
        assert peer_account(one) == os.getuid()


def test_nothing_at_the_path_is_no_master(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "none", "x" * 200):
        assert not mux.is_alive(str(path))
