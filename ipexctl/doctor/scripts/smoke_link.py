"""Runs on two hosts: measures the round trip and the bandwidth from one to the other.

Argv: `serve ADDRESS TOKEN LIFE` or `ask LIFE`. Stdin of `ask`: `to N ADDRESS PORT TOKEN`, then
`go SECONDS`; its end ends both. Stdout: `port P`, or `link N MICROSECONDS BITS/S`, `lost N WHY`.
Python 3.8, standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time

_WORD = 8
_STREAM = b"stream!\n"
_MOST = 256 << 20


def say(line: str) -> None:
    os.write(1, (line + "\n").encode("utf-8", "replace"))


def read_exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise OSError("it ended in between")
        data += piece
    return data


def serve(address: str, token: str) -> None:
    family, kind, protocol, _, where = socket.getaddrinfo(address, 0, 0, socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listener:
        try:
            listener.bind(where)
        except OSError as error:
            say("lost - " + (error.strerror or str(error)))
            return
        listener.listen(8)
        say(f"port {listener.getsockname()[1]}")
        while True:
            waiting: list[int | socket.socket] = [0, listener]
            ready = select.select(waiting, [], [])[0]
            if 0 in ready and not os.read(0, 4096):
                return
            if listener in ready:
                caller = listener.accept()[0]
                with caller:
                    caller.settimeout(2)
                    with contextlib.suppress(OSError):
                        answer(caller, token.encode())


def answer(caller: socket.socket, token: bytes) -> None:
    caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if read_exactly(caller, len(token)) != token:
        return
    while True:
        word = read_exactly(caller, _WORD)
        caller.sendall(word)
        if word == _STREAM:
            break
    count, room = 0, bytearray(1 << 20)
    started = time.perf_counter()
    while True:
        got = caller.recv_into(room)
        if not got:
            break
        count += got
    took = max(1e-6, time.perf_counter() - started)
    caller.sendall(f"{count * 8 / took:.0f}\n".encode())


def ask(address: str, port: int, token: str, seconds: float) -> tuple[float, float]:
    with socket.create_connection((address, port), timeout=1) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(1 + seconds)
        sock.sendall(token.encode())
        trips: list[float] = []
        started = time.perf_counter()
        while len(trips) < 200 and time.perf_counter() - started < min(0.1, seconds):
            once = time.perf_counter()
            sock.sendall(b"ping..!\n")
            read_exactly(sock, _WORD)
            trips.append(time.perf_counter() - once)
        sock.sendall(_STREAM)
        read_exactly(sock, _WORD)
        chunk, sent = b"\0" * (1 << 20), 0
        started = time.perf_counter()
        while sent < _MOST and time.perf_counter() - started < seconds:
            sock.sendall(chunk)
            sent += len(chunk)
        sock.shutdown(socket.SHUT_WR)
        answered = b""
        while not answered.endswith(b"\n"):
            piece = sock.recv(64)
            if not piece:
                raise OSError("it ended in between")
            answered += piece
        return sorted(trips)[len(trips) // 2], float(answered)


def ask_all() -> None:
    unread, targets = b"", []
    while True:
        data = os.read(0, 65536)
        if not data:
            return
        *lines, unread = (unread + data).split(b"\n")
        for line in lines:
            words = line.decode("ascii", "replace").split()
            if len(words) == 5 and words[0] == "to":
                targets.append((words[1], words[2], int(words[3]), words[4]))
            elif len(words) == 2 and words[0] == "go":
                deadline = time.monotonic() + float(words[1])
                # In turn: all of them share this host's link.
                each = min(0.5, max(0.03, 0.7 * float(words[1]) / max(1, len(targets))))
                for number, address, port, token in targets:
                    if time.monotonic() > deadline:
                        say(f"lost {number} no time was left for it")
                        continue
                    try:
                        trip, bits = ask(address, port, token, each)
                    except OSError as error:
                        say(f"lost {number} {error.strerror or error}")
                    else:
                        say(f"link {number} {trip * 1e6:.1f} {bits:.0f}")
                targets = []


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(float(sys.argv[-1])))
    if sys.argv[1] == "serve":
        serve(sys.argv[2], sys.argv[3])
    else:
        ask_all()
