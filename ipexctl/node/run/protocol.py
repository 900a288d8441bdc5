"""How a run's ranks and its supervisor talk: frames over a socket, and the proof that both have the run's token.

A frame is the payload's length (4 bytes, big-endian), one byte for its kind, the payload. Kinds: `J`, a JSON object
whose `t` says what it is; `O` and `E`, a piece of stdout or stderr: its offset in the stream (8 bytes), then the bytes
as they came. The supervisor opens with `challenge {nonce}`, the rank answers `hello {rank, nonce, proof, …}`, the
supervisor `welcome {proof, …}`. No proof can be made, or made again, without the token.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import shlex
import socket
import struct
import subprocess
import time
from collections import deque
from typing import Any, Dict, Iterator

PROTOCOL = "ipexctl.run/1"
MOST = 2 << 20
"""Bytes of a frame."""
MOST_OF_STRANGERS = 4096
READ = 1 << 18
SOURCED = 90.0
"""Seconds for a setup file: one that waits for something would hold up the run without a word."""
_HEAD = struct.Struct("!Ic")
_OFFSET = struct.Struct("!Q")
Json = Dict[str, Any]


class ConnectionBroken(Exception):
    """The connection is of no more use, and why."""


def proof(token: str, role: str, *said: object) -> str:
    text = "|".join([PROTOCOL, role, *map(str, said)])
    return hmac.new(bytes.fromhex(token), text.encode(), hashlib.sha256).hexdigest()


def is_proof(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())


def message(t: str, **fields: Any) -> bytes:
    payload = json.dumps({"t": t, **fields}).encode()
    return _HEAD.pack(len(payload), b"J") + payload


def chunk(kind: bytes, offset: int, data: bytes) -> bytes:
    return _HEAD.pack(len(data) + _OFFSET.size, kind) + _OFFSET.pack(offset) + data


def read_chunk(payload: bytes) -> tuple[int, bytes]:
    if len(payload) < _OFFSET.size:
        raise ConnectionBroken("a piece of output without its offset")
    return _OFFSET.unpack_from(payload)[0], payload[_OFFSET.size :]


def read_message(payload: bytes) -> Json:
    try:
        said = json.loads(payload.decode())
    except (ValueError, RecursionError):
        raise ConnectionBroken("a message that is no JSON") from None
    if not isinstance(said, dict) or not isinstance(said.get("t"), str):
        raise ConnectionBroken("a message of another shape")
    return said


class Link:
    """One end of a connection that never blocks: frames in, frames out, and when the other side was last heard."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.most = MOST_OF_STRANGERS
        self.pending = 0
        """Bytes that wait for the socket to take them."""
        self.began = self.heard = time.monotonic()
        self._in = bytearray()
        self._out: deque[memoryview] = deque()

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, data: bytes) -> None:
        self._out.append(memoryview(data))
        self.pending += len(data)

    def flush(self) -> None:
        """Hand the socket what it takes now."""
        while self._out:
            try:
                sent = self.sock.send(self._out[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise ConnectionBroken(error.strerror or str(error)) from None
            self.pending -= sent
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
                return
            self._out.popleft()

    def receive(self) -> Iterator[tuple[bytes, bytes]]:
        """What has come, as kind and payload; raises where the other side is gone or talks nonsense."""
        try:
            data = self.sock.recv(READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise ConnectionBroken(error.strerror or str(error)) from None
        if not data:
            raise ConnectionBroken("the other side hung up")
        self.heard = time.monotonic()
        self._in += data
        start = 0
        try:
            while len(self._in) - start >= _HEAD.size:
                size, kind = _HEAD.unpack_from(self._in, start)
                if size > self.most:
                    raise ConnectionBroken(f"a frame of {size} bytes")
                end = start + _HEAD.size + size
                if len(self._in) < end:
                    break
                payload = bytes(self._in[start + _HEAD.size : end])
                start = end
                yield kind, payload
        finally:
            del self._in[:start]

    def close(self) -> None:
        self.sock.close()


def listen(address: str, ports: Any) -> socket.socket:
    """A listener on that address alone; `ports` is a range to choose from, where a firewall has one."""
    family, kind, proto, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, proto)
    try:
        _bind(listener, place, ports)
        listener.listen(512)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _bind(listener: socket.socket, place: Any, ports: Any) -> None:
    if not ports:
        listener.bind(place)
        return
    for port in range(ports[0], ports[1] + 1):
        try:
            listener.bind((place[0], port, *place[2:]))
        except OSError:
            if port == ports[1]:
                raise
        else:
            return


def free_port(address: str, ports: Any = None) -> int:
    """A port nobody listens on there. Not one of those the kernel gives to outgoing connections: a rank that connects
    somewhere before rank 0 listens would take it."""
    low, high = ports or (15000, 32000)
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            first = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32768
    if not ports and first <= low:
        low, high = 1024, max(1025, min(first, 32000) - 1)
    family, kind, proto, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    size = high - low + 1
    start = int.from_bytes(os.urandom(4), "big") % size
    for index in range(min(size, 2000)):
        port = low + (start + index) % size
        with socket.socket(family, kind, proto) as tried:
            try:
                tried.bind((place[0], port, *place[2:]))
            except OSError:
                continue
            return port
    raise OSError(0, f"no free port among {low} to {high}")


def sourced(setup: str, environ: dict[str, str]) -> dict[str, str]:
    """The environment after bash has sourced that file; raises an OSError that says what it complained about."""
    # As at a prompt: $0 is bash, since oneAPI's scripts refuse where it is themselves, and there are no arguments.
    # It fails with 3 where it has been sourced before, and node0's ranks inherit mpirun's environment.
    script = f"unset -v SETVARS_COMPLETED; . {shlex.quote(setup)} </dev/null 1>&2 || exit; exec env -0"
    try:
        words = ["bash", "-c", script]
        done = subprocess.run(words, env=environ, capture_output=True, check=False, timeout=SOURCED)
    except FileNotFoundError:
        raise OSError(0, f"there is no bash to source {setup} with") from None
    except subprocess.TimeoutExpired:
        raise OSError(0, f"{setup} could not be sourced: it took longer than {SOURCED:g} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(0, f"{setup} could not be sourced: {said[-1] if said else f'exit code {done.returncode}'}")
    pairs = (item.partition(b"=") for item in done.stdout.split(b"\0") if item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if name not in (b"_", b"SHLVL")}


def with_variables(environ: dict[str, str], variables: Json, prepended: list[str]) -> None:
    """Set them; None takes one away; those that are prepended go before what is there."""
    for name, value in variables.items():
        if value is None:
            environ.pop(name, None)
        elif name in prepended and environ.get(name):
            environ[name] = f"{value}:{environ[name]}"
        else:
            environ[name] = str(value)


def ready(readers: list[Any], writers: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
    """Those that can be read, and written, now; at most that many seconds later."""
    poll = select.poll()
    by_number: dict[int, Any] = {}
    events: dict[int, int] = {}
    for each, event in [*((each, select.POLLIN) for each in readers), *((each, select.POLLOUT) for each in writers)]:
        number = each if isinstance(each, int) else each.fileno()
        by_number[number] = each
        events[number] = events.get(number, 0) | event
    for number, event in events.items():
        poll.register(number, event)
    found = poll.poll(max(0, int(timeout * 1000 + 0.999)))
    can_read = [by_number[number] for number, event in found if event & ~select.POLLOUT]
    can_write = [by_number[number] for number, event in found if event & (select.POLLOUT | select.POLLERR)]
    return can_read, can_write
