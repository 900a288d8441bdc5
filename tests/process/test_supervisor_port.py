"""The supervisor's port: other clients block no rank, and a malformed message closes only its connection."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from run_helpers import SLEEP_FOREVER, Run

from ipexctl.node.common.frames import Chunk, FrameReader, decode_json, encode_chunk, encode_json
from ipexctl.node.common.token_proof import RANKS, ClientHandshake
from strangers import UnauthenticatedClients

pytest_plugins = ["run_fixtures"]

NO_RANKS = [sys.executable, "-c", "import time; time.sleep(600)"]
"""In place of mpirun: the test plays the ranks."""


def connect_locally(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(0.2)
    try:
        connection.connect(name.replace("@", "\0"))
    except OSError:
        connection.close()
        raise
    return connection


@pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.1", "@"])
def test_many_unauthenticated_connections_delay_no_rank(make: Callable[..., Run], source: str) -> None:
    run = make(SLEEP_FOREVER, 4)
    run.listen()
    if source == "@":
        connect = partial(connect_locally, run.local)
    else:
        run.rank_port = run.port
        connect = partial(socket.create_connection, ("127.0.0.1", run.port), 0.2, (source, 0))
    with UnauthenticatedClients(connect, 700):
        run.send_go()
        began = time.monotonic()
        run.wait_for_all(b"here\n")
        assert time.monotonic() - began < 10  # a rank gives up after 20 s
        os.kill(run.status["supervisor"]["pid"], signal.SIGTERM)
        assert run.wait()["state"] == "stopped"


class FakeRank:
    """A rank with the run's token that sends the frames of a test."""

    def __init__(self, run: Run, rank: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", run.port), timeout=10)
        self._reader = FrameReader()
        self._received: list[dict[str, Any]] = []
        identity = {"rank": rank, "instance": f"of {rank}", "pid": 1, "host": "here", "attempt": None}
        handshake = ClientHandshake(run.token, RANKS, **identity)
        self.send(handshake.hello(self.receive()))
        handshake.check(self.receive())

    def send(self, *frames: dict[str, Any] | bytes) -> None:
        self.socket.sendall(b"".join(frame if isinstance(frame, bytes) else encode_json(frame) for frame in frames))

    def receive(self) -> dict[str, Any]:
        while not self._received:
            data = self.socket.recv(65536)
            assert data, "the supervisor has closed the connection"
            self._received += [decode_json(payload) for _, payload in self._reader.feed(data)]
        return self._received.pop(0)

    def is_dropped(self) -> bool:
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(65536):
                pass
        return True

    def end(self, code: int = 0) -> None:
        self.send({**EXIT, "code": code}, {"t": "end", "ends": {"out": 5}})


BEAT = {"t": "beat", "figures": {"cpu": 1.0, "rss": 1, "process": "S"}, "ends": {"out": 0, "err": 0}}
EXIT = {"t": "exit", "code": 0, "signal": None, "is_own": True, "oom": None}
STUCK = {"t": "stuck", "code": 1, "text": "x", "seconds": 10}


def frame(kind: bytes, payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + kind + payload


MALFORMED: list[dict[str, Any] | bytes] = [
    frame(b"J", b"{"),
    frame(b"J", b"[]"),
    frame(b"J", b"[" * 4000),
    frame(b"J", b"\xff"),
    frame(b"X", b""),
    frame(b"O", b"\0\0\0"),
    frame(b"J", b'{"t": "start", "pid": 1' + b"0" * 5000 + b"}"),
    b"\xff\xff\xff\xffJ",
    {},
    {"t": []},
    {"t": "of another version"},
    {"t": "start"},
    {"t": "start", "pid": "1"},
    {"t": "start", "pid": 1e400},
    *({**BEAT, "figures": {name: value}} for name in ("cpu", "rss") for value in ("a lot", [1], float("nan"))),
    *({**BEAT, "figures": value} for value in (None, "0", {"waits_in": 5})),
    {**BEAT, "ends": {"out": -1}},
    {**BEAT, "ends": {"err": {}}},
    {**BEAT, "ends": None},
    *({**EXIT, "code": value} for value in (None, "1", float("inf"), 10**30, -1, True)),
    *({**EXIT, "signal": value} for value in ("9", 0, 65, [9])),
    {**EXIT, "is_own": None},
    {**STUCK, "seconds": "long"},
    {**STUCK, "text": None},
    {"t": "outside-signal", "signal": None},
    {"t": "mismatch"},
    {"t": "checkpoint-failed", "reason": 5},
    {"t": "stacks", "id": ["x"], "processes": []},
    {"t": "stacks", "id": "x", "processes": [1]},
    {"t": "end", "ends": {"out": "all"}},
]


@pytest.mark.core
def test_malformed_message_closes_only_its_connection(make: Callable[..., Run]) -> None:
    run = make("", len(MALFORMED) + 1, launch=NO_RANKS).start()
    zero, *others = (FakeRank(run, rank) for rank in range(len(MALFORMED) + 1))
    for rank in (zero, *others):
        rank.send({"t": "start", "pid": 1})
    for number, malformed in enumerate(MALFORMED, 1):
        others[number - 1].send(encode_chunk(Chunk(number, "stdout", b"first")), malformed)
        assert others[number - 1].is_dropped(), malformed
        others[number - 1] = FakeRank(run, number)
    zero.end(3)
    for rank in others:
        rank.end()
    status = run.wait()
    assert (status["state"], status["exit_code"]) == ("failed", 3)
    assert (status["first_failure"]["rank"], status["first_failure"]["kind"]) == (0, "exit")
    assert [event["rank"] for event in run.events("malformed")] == list(range(1, len(MALFORMED) + 1))
    assert {run.output(number) for number in range(1, len(MALFORMED) + 1)} == {b"first"}
    assert run.said("supervise.log") == ""
