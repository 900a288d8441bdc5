"""The temporary file server serves only clients with its token, and ends with the process that started it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from node_store_helpers import END, content_of, file_of, frame, receive, run, start

from agent_helpers import all_pythons
from ipexctl.node.common.frames import FrameReader, decode_json, encode_json
from ipexctl.node.common.token_proof import FILES, ClientHandshake

ONE, TWO = os.urandom(3_000_001), b"the second"
TOKEN = "0123456789abcdef" * 4


class Served:
    def __init__(self, store: Path, **more: Any) -> None:
        self.store = store
        self.request = {"store": str(store), "bind": "127.0.0.1", "token": TOKEN, "clients": 0, "addresses": []}
        self.request |= {"idle": 30, **more}
        self.process = start("peer_transfer", "serve", self.request)
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())["port"])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def call(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    store = tmp_path / "here"
    receive(store, frame(ONE) + frame(TWO, "b.whl") + END)
    server = Served(store, files=[file_of(ONE), file_of(TWO, "b.whl")])
    yield server
    server.close()


def wanted(served: Served, store: Path, **more: Any) -> dict[str, Any]:
    files = [file_of(ONE), file_of(TWO, "b.whl")]
    return {"store": str(store), "files": files, "address": "127.0.0.1", "port": served.port, "token": TOKEN, **more}


@pytest.mark.parametrize("python", all_pythons())
def test_client_with_the_token_gets_the_files(served: Served, tmp_path: Path, python: str) -> None:
    said = run("peer_transfer", "connect", wanted(served, tmp_path / "there"), python=python)
    assert said.last["event"] == "done", said
    assert content_of(tmp_path / "there") == content_of(served.store)


def test_client_with_another_token_gets_nothing(served: Served, tmp_path: Path) -> None:
    said = run("peer_transfer", "connect", wanted(served, tmp_path / "there", token="f" * 64))
    assert "is not the server that was meant" in said.reason
    assert content_of(tmp_path) == {f"here/{path}": data for path, data in content_of(served.store).items()}


def test_recorded_handshake_is_not_served_again(served: Served) -> None:
    with served.call() as first, served.call() as second:
        hello = encode_json(ClientHandshake(TOKEN, FILES).hello(message_of(first)))
        message_of(second)
        second.sendall(hello)
        assert message_of(second)["t"] == "refused"
        first.sendall(hello)
        assert message_of(first)["t"] == "welcome"


def message_of(conn: socket.socket) -> dict[str, Any]:
    ((_, payload),) = FrameReader().feed(conn.recv(4096))
    return decode_json(payload)


LIES: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "its own proof": lambda hello: encode_json({"t": "welcome", "proof": hello["proof"]}),
    "its own hello": lambda hello: encode_json(hello),
    "no proof": lambda _: encode_json({"t": "welcome"}),
    "refused": lambda _: encode_json({"t": "refused"}),
    "a line": lambda _: b'{"proof": "x"}\n',
    "too large": lambda _: b"\xff\xff\xff\xffJ",
}


@pytest.mark.parametrize("lie", [pytest.param(lie, marks=[pytest.mark.core] * (lie == "no proof")) for lie in LIES])
def test_client_refuses_a_server_without_the_token(tmp_path: Path, lie: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        request = {"store": str(tmp_path / "there"), "files": [file_of(TWO)], "address": "127.0.0.1"}
        client = start("peer_transfer", "connect", {**request, "port": listener.getsockname()[1], "token": TOKEN})
        conn, _ = listener.accept()
        with conn:
            conn.sendall(encode_json({"t": "challenge", "nonce": "a" * 32}))
            hello = message_of(conn)
            conn.sendall(LIES[lie](hello) + frame(TWO) + END)
            out, _ = client.communicate(timeout=10)
    assert b"is not the server that was meant" in out
    assert content_of(tmp_path) == {}


def test_client_connects_again_if_the_server_closes_its_connection(served: Served, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = start("peer_transfer", "connect", wanted(served, tmp_path / "there", port=port))
        for reply in (b"", encode_json({"t": "challenge", "nonce": "a" * 32})):
            conn, _ = listener.accept()
            conn.sendall(reply)
            conn.close()
        conn, _ = listener.accept()
        with conn, served.call() as server:  # a relay, which sees all
            threads = [threading.Thread(target=relay, args=pair) for pair in ((conn, server), (server, conn))]
            for thread in threads:
                thread.start()
            out, _ = client.communicate(timeout=20)
            for thread in threads:
                thread.join()
    assert b'"done"' in out
    assert content_of(tmp_path / "there") == content_of(served.store)


def relay(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_only_listed_files_are_served(tmp_path: Path) -> None:
    store = tmp_path / "here"
    receive(store, frame(ONE) + frame(TWO, "b.whl") + END)
    served = Served(store, files=[file_of(TWO, "b.whl")])
    run("peer_transfer", "connect", wanted(served, tmp_path / "there"))
    assert list(content_of(tmp_path / "there").values()) == [TWO]
    served.close()


def test_damaged_file_is_refused_by_name(served: Served, tmp_path: Path) -> None:
    (path,) = served.store.glob("*/a-1.0*")
    path.write_bytes(ONE[::-1])
    last = run("peer_transfer", "connect", wanted(served, tmp_path / "there")).last
    assert len(last["got"]) == 1
    assert "a-1.0-py3-none-any.whl" in last["failed"][0]["reason"]
    assert list(content_of(tmp_path / "there").values()) == [TWO]


def test_server_ends_if_stdin_is_closed(served: Served) -> None:
    assert served.process.stdin is not None
    served.process.stdin.close()
    assert served.process.wait(3) == 0
    with pytest.raises(ConnectionRefusedError):
        served.call()


def test_server_ends_at_idle_timeout(served: Served) -> None:
    short = Served(served.store, files=[], idle=0.5)
    assert short.process.wait(5) == 0
    short.close()


def test_connection_errors_are_reported_with_a_fix(tmp_path: Path) -> None:
    request = {"store": str(tmp_path), "files": [file_of(TWO)], "address": "127.0.0.1", "port": 1, "token": TOKEN}
    said = run("peer_transfer", "connect", request)
    assert "no connection to 127.0.0.1 port 1: Connection refused" in said.reason
    assert "firewall" in said.last["fix"]
    request = {"store": str(tmp_path), "files": [], "bind": "10.255.255.1", "token": ""}
    request |= {"clients": 0, "addresses": [], "idle": 1}
    serve = run("peer_transfer", "serve", request)
    assert "nothing can listen on 10.255.255.1" in serve.reason
