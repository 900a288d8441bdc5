"""Probe TCP ports between hosts: listen on a free port, connect to other hosts, and report each attempt.

Lines of stdin, and the events that follow:

    ADDRESS TOKEN SECONDS: this host's internal address, and the time after which this process is killed
        → {"event": "ready", "port": N or null, "reason": why it can't listen}
    SECONDS ADDRESS PORT TOKEN ADDRESS PORT TOKEN …: the targets
        → {"event": "result", "number": N, "kind", "text"}, one per target

The program exits when stdin ends. A listener proves to everybody that it has the token, so another machine at the same
address is noticed. A listener reads nothing, so no stranger can block it. Hosts run this source with `-c`, which is
twice as fast as an agent from a zip. `socket`, `signal` and `collections` would take 7 of 17 ms on up to 128 nodes, so
their C modules are imported in their place.
"""

from __future__ import annotations

import _operator
import _signal  # type: ignore[import-not-found]
import _socket
import _thread
import errno
import os
import sys
import time

try:
    from _blake2 import blake2b
except ImportError:  # a Python built without _blake2; hashlib loads OpenSSL (3 to 15 ms)
    from hashlib import blake2b

_KINDS = {
    **dict.fromkeys((errno.ECONNREFUSED, errno.ECONNRESET), "refused"),
    **dict.fromkeys((errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN), "noroute"),
    **dict.fromkeys((errno.EPERM, errno.EACCES), "denied"),
    errno.ETIMEDOUT: "timeout",
}
_LONGEST_GREETING = 512
_FILLING = b"\0" * (1 << 15)
"""Follows a greeting: packets as large as the path allows, also with jumbo frames."""
_write_lock = _thread.allocate_lock()


def listen(address: str, token: str) -> tuple[int | None, str]:
    """Greet everybody who connects until this process exits; return the port, or None and the reason."""
    try:
        infos = _socket.getaddrinfo(_encoded(address), 0, 0, _socket.SOCK_STREAM)
        family, kind, protocol, _, socket_address = infos[0]
        listener = _socket.socket(family, kind, protocol)
        listener.bind(socket_address)
        listener.listen(512)
    except OSError as error:
        return None, error.strerror or str(error)

    def greet() -> None:
        while True:
            try:
                number, _ = listener._accept()  # type: ignore[attr-defined]  # socket.accept() calls it
                connection = _socket.socket(fileno=number)
                try:
                    connection.settimeout(1)
                    connection.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, 4 * len(_FILLING))
                    connection.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
                    connection.sendall(_greeting(token, os.urandom(16).hex()))
                    connection.sendall(_FILLING)
                finally:
                    connection.close()
            except OSError:
                time.sleep(0.01)  # out of file descriptors, or the connection is closed

    _thread.start_new_thread(greet, ())
    return listener.getsockname()[1], ""


def _greeting(token: str, nonce: str) -> bytes:
    """Return a line with the nonce, and a proof that only a program with the token can make."""
    proof = blake2b(nonce.encode(), key=token.encode()[:64], digest_size=32).hexdigest()
    return f"ipexctl {nonce} {proof}\n".encode()


def _is_greeting(data: bytes, token: str) -> bool:
    fields = data.decode("ascii", "replace").split(" ")
    return len(fields) == 3 and _operator._compare_digest(data, _greeting(token, fields[1]))


def _encoded(address: str) -> str | bytes:
    """Return the address as bytes, because getaddrinfo would import a module to encode text (6 ms)."""
    return address.encode() if address.isascii() else address


def connect(address: str, port: int, token: str, seconds: float) -> tuple[str, str]:
    """Connect once and wait for the greeting; return a kind and a text.

    Kinds: ok refused timeout noroute denied, wrong (no proof of the token), mute (no greeting in time), large-lost (the
    greeting arrives, and the large packets behind it do not), error.
    """
    deadline = time.monotonic() + seconds
    connection, data, filling = None, b"", 0
    try:
        connection = _open_connection(address, port, seconds)
        while b"\n" not in data or (_is_greeting(data, token) and filling < len(_FILLING)):
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            received = connection.recv(1 << 16)
            greeting, end, rest = (data + received).partition(b"\n")
            data, filling = greeting + end, filling + len(rest)
            if not received or len(data) > _LONGEST_GREETING:
                break
    except _socket.timeout:
        return "large-lost" if _is_greeting(data, token) else "mute" if connection is not None else "timeout", ""
    except OSError as error:
        kind = "ok" if _is_greeting(data, token) else _KINDS.get(error.errno or 0, "error")
        return kind, "" if kind in ("ok", "refused", "timeout") else error.strerror or str(error)
    finally:
        if connection is not None:
            connection.close()
    return ("ok", "") if _is_greeting(data, token) else ("wrong", repr(data[:40].decode("ascii", "replace")))


def _open_connection(address: str, port: int, seconds: float) -> _socket.socket:
    """Connect to the first address of a name that answers. Raises the last OSError if none does."""
    problem = OSError("it has no address")
    infos = _socket.getaddrinfo(_encoded(address), port, 0, _socket.SOCK_STREAM)
    for family, kind, protocol, _, socket_address in infos:
        connection = None
        try:
            connection = _socket.socket(family, kind, protocol)
            connection.settimeout(seconds)
            connection.connect(socket_address)
        except OSError as error:
            problem = error
            if connection is not None:
                connection.close()
        else:
            return connection
    raise problem


def emit(event: str, **fields: str | int | None) -> None:
    """Print an event as a line of JSON, written at once, because threads print, too."""
    values = ", ".join(f'"{name}": {_to_json(value)}' for name, value in {"event": event, **fields}.items())
    with _write_lock:
        os.write(1, f"{{{values}}}\n".encode())


def _to_json(value: str | int | None) -> str:
    """Return a value as JSON; the module `json` is imported only for text that needs it."""
    if isinstance(value, int):
        return str(value)
    if value is not None and value.isascii() and value.isprintable() and not {'"', "\\"} & set(value):
        return f'"{value}"'
    import json

    return json.dumps(value)


def report_attempt(number: int, address: str, port: int, token: str, seconds: float) -> None:
    """Connect to a target and report the result. `number`: position of the target in its line."""
    kind, text = connect(address, port, token, seconds)
    emit("result", number=number, kind=kind, text=text)


def parse_order(line: bytes) -> tuple[float, list[tuple[str, int, str]]]:
    """Return the seconds and the targets (address, port, token) of a line `SECONDS ADDRESS PORT TOKEN …`."""
    seconds, *fields = line.decode().split()
    targets = [(fields[first], int(fields[first + 1]), fields[first + 2]) for first in range(0, len(fields), 3)]
    return float(seconds), targets


def main() -> int:
    """Listen at the address in the first line of stdin, and connect to the targets in each later one, all at once."""
    stdin = sys.stdin.buffer
    address, token, life = stdin.readline().decode().split()
    _signal.signal(_signal.SIGALRM, _signal.SIG_DFL)
    _signal.alarm(int(life))
    port, reason = listen(address, token)
    emit("ready", port=port, reason=reason)
    for line in stdin:
        seconds, targets = parse_order(line)
        for number, target in enumerate(targets):
            _thread.start_new_thread(report_attempt, (number, *target, seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
