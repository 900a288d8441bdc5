"""Runs on a host: listens on a port of the kernel's choice, connects to others', says how that went.

Argv: its internal address, its token, seconds to live. Stdin: `to N ADDRESS PORT TOKEN AGAIN`, then `go SECONDS`; its
end ends us. Stdout: `ready PORT GAPS CONNECTS TOOL`, `result N KIND TEXT`. Python 3.8, standard library only.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
import time

_REFUSED = (errno.ECONNREFUSED, errno.ECONNRESET)
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


def say(line: str) -> None:
    os.write(1, (line + "\n").encode("utf-8", "replace"))


def listen(address: str) -> tuple[socket.socket | None, str]:
    reason = ""
    try:
        found = socket.getaddrinfo(address, 0, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)
    except OSError as error:
        return None, error.strerror or str(error)
    for family, kind, protocol, _, where in found:
        try:
            listener = socket.socket(family, kind, protocol)
            listener.bind(where)
            listener.listen(128)
            listener.setblocking(False)
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            return listener, ""
    return None, reason


class Attempt:
    """One connection to one host, made again while it is refused by a listener that has gaps."""

    def __init__(self, number: str, address: str, port: int, token: bytes, again: bool) -> None:
        self.number = number
        self.where = (address, port)
        self.token = token
        self.again = again
        self.sock: socket.socket | None = None
        self.connected = False
        self.heard = b""
        self.not_before = 0.0
        self.since = 0.0
        self.over = False

    def start(self) -> None:
        try:
            family, kind, protocol, _, where = socket.getaddrinfo(*self.where, 0, socket.SOCK_STREAM)[0]
            self.sock = socket.socket(family, kind, protocol)
            self.sock.setblocking(False)
            code = self.sock.connect_ex(where)
        except OSError as error:
            self.end("error", error.strerror or str(error))
            return
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR):
            self.fail(code)

    def fail(self, code: int) -> None:
        if code in _REFUSED and self.again:
            self.close()
            self.connected, self.heard = False, b""
            self.not_before = time.monotonic() + 0.1
        elif code in _REFUSED:
            self.end("refused")
        elif code in _NO_ROUTE:
            self.end("noroute", os.strerror(code))
        elif code == errno.ETIMEDOUT:
            self.end("timeout")
        elif code in (errno.EPERM, errno.EACCES):
            self.end("denied", os.strerror(code))
        else:
            self.end("error", os.strerror(code))

    def writable(self) -> None:
        if self.sock is None:
            return
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.fail(code)
        else:
            self.connected = True
            self.since = time.monotonic()

    def readable(self) -> None:
        if self.sock is None:
            return
        try:
            data = self.sock.recv(256)
        except BlockingIOError:
            return
        except OSError as error:
            self.fail(error.errno or 0)
            return
        self.heard += data
        if self.token in self.heard:
            self.end("ok")
        elif not data and self.again and not self.heard:
            self.fail(errno.ECONNREFUSED)
        elif not data or len(self.heard) > 512:
            self.end("wrong", repr(self.heard[:40].decode("ascii", "replace")))

    def too_late(self) -> None:
        if self.connected:
            self.end("mute")
        else:
            self.end("refused" if self.not_before else "timeout")

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def end(self, kind: str, text: str = "") -> None:
        self.close()
        self.over = True
        say(f"result {self.number} {kind} {text}".replace("\n", " ").rstrip())


class Station:
    """The loop over stdin, the listener and every connection under way."""

    def __init__(self, address: str, token: str) -> None:
        self.greeting = f"ipexctl {token}\n".encode()
        self.listener, why = listen(address)
        self.attempts: list[Attempt] = []
        self.deadline: float | None = None
        self.unread = b""
        if self.listener is None:
            say("ready - 0 1 python3 " + why)
        else:
            say(f"ready {self.listener.getsockname()[1]} 0 1 python3")

    def run(self) -> None:
        while True:
            if self.deadline is not None:
                self.look_at_clock(self.deadline)
            open_ones = [a for a in self.attempts if a.sock is not None]
            reading: list[int | socket.socket] = [0, *([self.listener] if self.listener else [])]
            reading += [a.sock for a in open_ones if a.connected and a.sock]
            writing = [a.sock for a in open_ones if not a.connected and a.sock]
            wait = None if self.deadline is None else 0.05
            readable, writable, _ = select.select(reading, writing, [], wait)
            if 0 in readable and not self.read_orders():
                return
            if self.listener in readable:
                self.greet()
            for attempt in open_ones:
                if attempt.sock in writable:
                    attempt.writable()
                elif attempt.sock in readable:
                    attempt.readable()

    def look_at_clock(self, deadline: float) -> None:
        now = time.monotonic()
        for attempt in self.attempts:
            if attempt.over:
                continue
            if now >= deadline:
                attempt.too_late()
            elif attempt.sock is None and now >= attempt.not_before:
                attempt.start()
            elif attempt.again and attempt.connected and now > attempt.since + 0.5:
                # In the queue of a netcat that has just ended nobody is answered.
                attempt.fail(errno.ECONNREFUSED)
        if all(attempt.over for attempt in self.attempts):
            self.deadline = None

    def greet(self) -> None:
        if self.listener is None:
            return
        try:
            caller = self.listener.accept()[0]
        except OSError:
            return
        with caller:
            try:
                caller.settimeout(1)
                caller.sendall(self.greeting)
            except OSError:
                pass

    def read_orders(self) -> bool:
        data = os.read(0, 65536)
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            words = line.decode("ascii", "replace").split()
            if len(words) == 6 and words[0] == "to":
                _, number, address, port, token, again = words
                self.attempts.append(Attempt(number, address, int(port), token.encode(), again == "1"))
            elif len(words) == 2 and words[0] == "go":
                self.deadline = time.monotonic() + float(words[1])
        return bool(data)


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(sys.argv[3]))
    Station(sys.argv[1], sys.argv[2]).run()
