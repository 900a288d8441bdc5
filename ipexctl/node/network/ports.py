"""Probes TCP ports between hosts: listens on a free port, connects to other hosts, and reports each attempt.

    {"address": this host's internal address, "token", "life": seconds}
        → {"event": "ready", "port": N or null, "reason": why it can't listen}
    {"targets": [[address, port, token], …], "seconds"}
        → {"event": "result", "number": N, "kind", "text"}, one per target
    the end of stdin → {"event": "done"}

A listener sends its token, so that a connection to the wrong machine is not taken for a good one.
"""

from __future__ import annotations

import errno
import json
import signal
import socket
import threading
import time
from typing import BinaryIO, NamedTuple, Optional

from ipexctl.node.common import sockets
from ipexctl.node.common.answer import Json, answer, emit

_KINDS = {
    **dict.fromkeys((errno.ECONNREFUSED, errno.ECONNRESET), "refused"),
    **dict.fromkeys((errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN), "noroute"),
    **dict.fromkeys((errno.EPERM, errno.EACCES), "denied"),
    errno.ETIMEDOUT: "timeout",
}
_LONGEST_GREETING = 512


class ConnectResult(NamedTuple):
    """The result of one connection."""

    kind: str
    """ok refused timeout noroute denied, wrong (not the token), mute (no greeting in time), or error."""
    text: str = ""


class Listener(NamedTuple):
    port: Optional[int]  # noqa: UP045
    reason: str = ""
    """Why this host can't listen on that address."""


def listen(address: str, token: str) -> Listener:
    """Send the token to everybody who connects, until this process ends."""
    try:
        listener = sockets.listen(address)
    except OSError as error:
        return Listener(None, error.strerror or str(error))

    def greet() -> None:
        while True:
            try:
                connection = listener.accept()[0]
                with connection:
                    connection.settimeout(1)
                    connection.sendall(f"ipexctl {token}\n".encode())
            except OSError:
                time.sleep(0.01)  # out of file descriptors, or the connection is closed

    threading.Thread(target=greet, daemon=True).start()
    return Listener(listener.getsockname()[1])


def connect(address: str, port: int, token: str, seconds: float) -> ConnectResult:
    """Connect once and wait for the token."""
    deadline = time.monotonic() + seconds
    connected, data = False, b""
    try:
        with socket.create_connection((address, port), seconds) as connection:
            connected = True
            while token.encode() not in data:
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                received = connection.recv(256)
                data += received
                if not received or len(data) > _LONGEST_GREETING:
                    return ConnectResult("wrong", repr(data[:40].decode("ascii", "replace")))
    except socket.timeout:
        return ConnectResult("mute" if connected else "timeout")
    except OSError as error:
        kind = _KINDS.get(error.errno or 0, "error")
        return ConnectResult(kind, "" if kind in ("refused", "timeout") else error.strerror or str(error))
    return ConnectResult("ok")


def report_attempt(number: int, address: str, port: int, token: str, seconds: float) -> None:
    attempt = connect(address, port, token, seconds)
    emit("result", number=number, kind=attempt.kind, text=attempt.text)


def probe(request: Json, stdin: BinaryIO) -> Json:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(request["life"]))
    listener = listen(request["address"], request["token"])
    emit("ready", port=listener.port, reason=listener.reason)
    for line in stdin:
        order = json.loads(line)
        for number, target in enumerate(order["targets"]):
            threading.Thread(target=report_attempt, args=(number, *target, order["seconds"]), daemon=True).start()
    return {}


def main(_: str) -> int:
    return answer(probe)
