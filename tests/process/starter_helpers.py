"""The starter of a second host on this machine, and somebody between it and its supervisor."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

from run_helpers import Run

from ipexctl.node.common.frames import HEAD, MAX_FRAME, FrameReader, decode_json, encode_json

Orders = list[dict[str, Any]]


def begin_starter(run: Run, host: str = "there", argv: Sequence[str] = (), **changes: Any) -> int:
    """Begin the starter of a host, as the control machine does; returns its pid. `changes`: of the contact."""
    request = {
        "rundir": str(run.rundir), "host": host, "address": "127.0.0.1",
        "argv": argv or [*run.program("run.rank"), str(run.rundir / "job.json")],
        "contact": {"token": run.token, "local": "@none", "port": run.port, **changes},
    }  # fmt: skip
    done = subprocess.run(
        run.program("run.host_starter"),
        input=json.dumps(request).encode() + b"\n",
        capture_output=True,
        timeout=20,
        check=True,
    )
    reply: dict[str, Any] = json.loads(done.stdout)
    assert reply["event"] == "done"
    return int(reply["pid"])


class Attacker:
    """Sits between a starter and its supervisor, and changes what the supervisor sends in the first connection, or in
    each; or, with `of_answers`, what the starter and its ranks send."""

    def __init__(
        self, port: int, change: Callable[[Orders], Orders], *, goes_on: bool = False, of_answers: bool = False
    ) -> None:
        self._goes_on, self._of_answers = goes_on, of_answers
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port, self.connections = self._listening.getsockname()[1], 0
        self._target, self._change = port, change
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            change = self._change if self.connections == 1 or self._goes_on else None
            for source, target, is_answer in ((client, server, True), (server, client, False)):
                each = change if is_answer == self._of_answers else None
                threading.Thread(target=_relay, args=(source, target, each), daemon=True).start()


def _changed(kind: bytes, payload: bytes, change: Callable[[Orders], Orders]) -> bytes:
    if kind != b"J":
        return HEAD.pack(len(payload), kind) + payload
    return b"".join(map(encode_json, change([decode_json(payload)])))


def _relay(source: socket.socket, target: socket.socket, change: Callable[[Orders], Orders] | None) -> None:
    frames = FrameReader(MAX_FRAME)
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            if change is not None:
                data = b"".join(_changed(kind, payload, change) for kind, payload in frames.feed(data))
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)
