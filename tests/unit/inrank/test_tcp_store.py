"""The rendezvous store of rank 0: what is kept, and which connections count, with a real server in this process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ipexctl.inrank import tcp_store
from ipexctl.node.common.node_limits import STORE_KEPT
from ipexctl.node.common.records import KEEPS_TCP_STORE
from ipexctl.node.run.rank.rank_processes import read_wait_channel

CLIENT = "import socket, sys; sock = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); input()"


def test_both_sides_know_the_same_name_and_limit() -> None:
    assert (tcp_store.NAME.decode(), tcp_store.LIMIT) == (KEEPS_TCP_STORE, STORE_KEPT)


class Server:
    """Listens, and serves one connection of this process and one of another, as the store of two ranks."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.own = socket.create_connection(("127.0.0.1", self.port))
        self.of_own, _ = self.listener.accept()
        argv = [sys.executable, "-c", CLIENT, str(self.port)]
        self.other = subprocess.Popen(argv, stdin=subprocess.PIPE)
        self.of_other, _ = self.listener.accept()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        self.of_other.recv(1)  # empty once the other process has exited
        self.of_other.close()

    def end_other(self) -> None:
        self.other.communicate(b"\n", timeout=10)

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.end_other()
        for sock in (self.listener, self.own, self.of_own):
            sock.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()
    groups = SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", groups)
    monkeypatch.setattr(tcp_store, "_kept", {made.port: object()})
    monkeypatch.setattr(tcp_store, "set_name", lambda _: None)
    before = signal.getsignal(signal.SIGTERM)
    yield made
    signal.signal(signal.SIGTERM, before)
    made.close()


def test_rank_0_stays_until_the_other_process_has_closed_its_connection(server: Server) -> None:
    timer = threading.Timer(0.5, server.end_other)
    timer.start()
    began = time.monotonic()
    tcp_store.keep_tcp_store_for_other_ranks()
    assert 0.4 < time.monotonic() - began < 5
    began = time.monotonic()
    tcp_store.keep_tcp_store_for_other_ranks()
    assert time.monotonic() - began < 0.2


def test_new_connections_are_refused_and_others_than_the_stores_are_closed(server: Server) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    here = socket.create_connection(listener.getsockname())
    there, _ = listener.accept()
    with listener, here, there:
        threading.Timer(0.3, server.end_other).start()
        tcp_store.keep_tcp_store_for_other_ranks()
        assert here.recv(1) == there.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
    server.own.sendall(b"x")
    assert server.of_own.recv(1) == b"x"


def test_a_signal_ends_the_wait(server: Server) -> None:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    tcp_store.keep_tcp_store_for_other_ranks()
    assert server.other.poll() is None


def test_the_limit_is_told(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tcp_store, "LIMIT", 0.1)
    tcp_store.keep_tcp_store_for_other_ranks()
    assert "1 connections are still open" in capsys.readouterr().err


@pytest.mark.parametrize("engine", tcp_store.ENGINES)
def test_an_mpi_keeps_nothing(server: Server, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setitem(sys.modules, engine, SimpleNamespace())
    began = time.monotonic()
    tcp_store.keep_tcp_store_for_other_ranks()
    assert time.monotonic() - began < 0.2
    assert server.other.poll() is None


def test_a_forked_child_leaves_the_connections_alone(server: Server) -> None:
    if not os.fork():
        tcp_store.keep_tcp_store_for_other_ranks()
        os._exit(0)
    os.wait()
    server.own.sendall(b"x")
    assert server.of_own.recv(1) == b"x"
    socket.create_connection(("127.0.0.1", server.port), timeout=5).close()


def rendezvous() -> Any:
    made: list[tuple[int, int]] = []

    def create(hostname: str, port: int, rank: int, world_size: int, timeout: float) -> object:
        assert (hostname, timeout) == ("node0", 9)
        made.append((port, rank))
        assert port not in tcp_store._kept
        return (port, rank, len(made))

    module = SimpleNamespace(_create_c10d_store=create)
    tcp_store.watch_rendezvous(module)
    return module


def test_only_rank_0_of_several_keeps_its_newest_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_store, "_kept", {})
    create = rendezvous()._create_c10d_store
    assert create("node0", 5, 1, 2, timeout=9) == (5, 1, 1)
    assert create("node0", 6, 0, 1, timeout=9) == (6, 0, 2)
    assert tcp_store._kept == {}
    create("node0", 7, 0, 2, timeout=9)
    again = create("node0", 7, 0, 2, timeout=9)
    assert tcp_store._kept == {7: again}
    assert {1, 2} <= tcp_store._sizes


class Groups:
    """The group functions of torch, in a rank whose other rank makes the group later."""

    def __init__(self) -> None:
        self.made = 0
        self.events: list[str] = []
        self.init_process_group = self._init
        self.destroy_process_group = self._destroy
        self.is_made = False

    def _init(self, backend: str) -> None:
        self.is_made = True
        self.events.append(f"made {backend}")

    def _destroy(self, group: object = None) -> None:
        self.events.append(f"destroyed {group} with {self.made}")
        self.is_made = group is not None

    def is_initialized(self) -> bool:
        return self.is_made

    def get_world_size(self) -> int:
        return 2

    def _get_default_store(self) -> Groups:
        return self

    def add(self, key: str, number: int) -> int:
        assert key == tcp_store.MADE
        self.made += number
        return self.made


def test_a_rank_leaves_its_group_once_all_ranks_have_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups()
    monkeypatch.setattr(tcp_store, "_sizes", {2})
    tcp_store.watch_groups(groups)
    groups.init_process_group("gloo")
    assert groups.made == 1
    groups.destroy_process_group("a part")
    threading.Timer(0.3, groups.add, (tcp_store.MADE, 1)).start()
    groups.destroy_process_group()
    assert groups.events == ["made gloo", "destroyed a part with 1", "destroyed None with 2"]
    groups.destroy_process_group()  # the error is torch's
    monkeypatch.setattr(tcp_store, "MADE_LIMIT", 0.1)
    groups.made = -1
    groups.init_process_group("gloo")
    groups.destroy_process_group()
    assert groups.events[-1] == "destroyed None with 0"


def test_a_group_without_a_rendezvous_is_left_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups()
    monkeypatch.setattr(tcp_store, "_sizes", {4})
    tcp_store.watch_groups(groups)
    groups.init_process_group("fake")
    groups.destroy_process_group()
    assert groups.events == ["made fake", "destroyed None with 1"]


def test_the_process_is_known_by_its_name() -> None:
    code = "from ipexctl.inrank import tcp_store; tcp_store.set_name(tcp_store.NAME); print('', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert read_wait_channel(child.pid) == KEEPS_TCP_STORE
        child.communicate(b"\n", timeout=10)
