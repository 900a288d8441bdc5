"""Probes TCP ports between hosts: listens on a free port, connects to other hosts, and reports each attempt.

    ADDRESS TOKEN SECONDS: this host's internal address, and the time after which it ends
        → {"event": "ready", "port": N or null, "reason": why it can't listen, "identity": of machine and account}
    SECONDS ADDRESS PORT TOKEN ADDRESS PORT TOKEN …: the targets
        → {"event": "result", "number": N, "kind", "text"}, one per target
    the end of stdin → {"event": "done"}

A listener sends its token, so that a connection to the wrong machine is not taken for a good one. The source of this
module is also given to a host's Python with `-c`, which takes half of the time of an agent from a zip.
"""

from __future__ import annotations

import _thread
import errno
import os
import signal
import socket
import sys
import time
from collections import namedtuple

_KINDS = {
    **dict.fromkeys((errno.ECONNREFUSED, errno.ECONNRESET), "refused"),
    **dict.fromkeys((errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN), "noroute"),
    **dict.fromkeys((errno.EPERM, errno.EACCES), "denied"),
    errno.ETIMEDOUT: "timeout",
}
_LONGEST_GREETING = 512
_write_lock = _thread.allocate_lock()  # threading and json take 6 ms

ConnectResult = namedtuple("ConnectResult", ("kind", "text"), defaults=("",))  # typing takes 6 ms
"""One connection: ok refused timeout noroute denied, wrong (not the token), mute (no greeting in time), or error."""
Listener = namedtuple("Listener", ("port", "reason"), defaults=("",))
"""Its port, or None and the reason."""


def listen(address: str, token: str) -> Listener:
    """Send the token to everybody who connects, until this process ends."""
    try:
        family, _, _, _, socket_address = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.bind(socket_address)
        listener.listen(512)
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

    _thread.start_new_thread(greet, ())
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


def emit(event: str, **fields: str | int | None) -> None:
    values = ", ".join(f'"{name}": {_to_json(value)}' for name, value in {"event": event, **fields}.items())
    with _write_lock:
        os.write(1, f"{{{values}}}\n".encode())


def _to_json(value: str | int | None) -> str:
    if isinstance(value, int):
        return str(value)
    if value is not None and value.isascii() and value.isprintable() and not {'"', "\\"} & set(value):
        return f'"{value}"'
    import json

    return json.dumps(value)


def report_attempt(number: int, address: str, port: int, token: str, seconds: float) -> None:
    attempt = connect(address, port, token, seconds)
    emit("result", number=number, kind=attempt.kind, text=attempt.text)


def identity() -> str:
    """The identity of this machine and account, as a login prints it; empty if it is not known."""
    import pwd

    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        user, namespace = pwd.getpwuid(os.geteuid()).pw_name, os.readlink("/proc/self/ns/net")
    except (OSError, KeyError):
        return ""
    return f"{user} {os.uname().nodename} {boot} {namespace}"


def parse_order(line: bytes) -> tuple[float, list[tuple[str, int, str]]]:
    """The seconds, and the address, port and token of each target."""
    seconds, *words = line.decode().split()
    targets = [(words[first], int(words[first + 1]), words[first + 2]) for first in range(0, len(words), 3)]
    return float(seconds), targets


def main(_: str = "") -> int:
    stdin = sys.stdin.buffer
    address, token, life = stdin.readline().decode().split()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(life))
    listener = listen(address, token)
    emit("ready", port=listener.port, reason=listener.reason, identity=identity())
    for line in stdin:
        seconds, targets = parse_order(line)
        for number, target in enumerate(targets):
            _thread.start_new_thread(report_attempt, (number, *target, seconds))
    emit("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
