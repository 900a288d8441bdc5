"""Run commands over the socket of an ssh master connection, as in OpenSSH's PROTOCOL.mux (version 4, since 2010).

A command needs no process on this machine: beside 8 busy processes on two cores it takes 24 to 168 ms, against 262 to
684 ms by `ssh -S` (15 pairs). If this process is killed, its socket closes, and the session ends with it. ssh trusts
any socket that it finds, so the owner of the socket is checked here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import IO, Final

from ipexctl.node.common.macos import peer_account

_VERSION: Final = 4
_HELLO: Final = 0x00000001
_NEW_SESSION, _ALIVE_CHECK, _TERMINATE = 0x10000002, 0x10000004, 0x10000005
_DENIED, _FAILED, _EXIT, _ALIVE, _OPENED = (0x80000000 + number for number in (2, 3, 4, 5, 6))
_NO_ESCAPE: Final = 0xFFFFFFFF
_LONGEST_MESSAGE: Final = 1 << 18
"""Bytes of a message, as in OpenSSH."""
_ANSWER: Final = 10.0
NO_EXIT_CODE: Final = 255
"""The exit code of ssh if it got none from the host."""
_MUX_ERRORS: Final = (OSError, EOFError)


def _packed(*fields: int | str) -> bytes:
    """Return a message of the protocol: numbers of 32 bits and texts with their length, behind the length of all."""
    body = b""
    for field in fields:
        data = b"" if isinstance(field, int) else field.encode("utf-8", "surrogateescape")
        body += struct.pack(">I", field if isinstance(field, int) else len(data)) + data
    return struct.pack(">I", len(body)) + body


class _Connection:
    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self._data = b""
        try:
            self.socket.settimeout(_ANSWER)
            self.socket.connect(path)
            if peer_account(self.socket) not in (os.getuid(), 0):  # the owner would get the command and its stdin
                raise OSError(f"{path} is the socket of another account")
            self.socket.sendall(_packed(_HELLO, _VERSION))
            if self.receive()[:2] != (_HELLO, _VERSION):
                raise OSError(f"{path} is not the socket of an ssh master")
        except BaseException:
            self.socket.close()
            raise

    def receive(self) -> tuple[int, ...]:
        """Return the first three numbers of the next message, fewer if it is shorter. Raises a BlockingIOError until it
        is complete."""
        while len(self._data) < 4 or len(self._data) < 4 + int.from_bytes(self._data[:4], "big"):
            if int.from_bytes(self._data[:4], "big") > _LONGEST_MESSAGE:
                raise OSError("the ssh master sent a message that is too long")
            data = self.socket.recv(4096)
            if not data:
                raise EOFError
            self._data += data
        end = 4 + int.from_bytes(self._data[:4], "big")
        message, self._data = self._data[4:end], self._data[end:]
        return struct.unpack_from(f">{min(3, len(message) // 4)}I", message)


def is_alive(path: str) -> bool:
    """Return True if a master of this account or of root answers at the path."""
    with contextlib.suppress(*_MUX_ERRORS):
        connection = _Connection(path)
        with connection.socket:
            connection.socket.sendall(_packed(_ALIVE_CHECK, 0))
            return connection.receive()[:1] == (_ALIVE,)
    return False


def end(path: str) -> None:
    """End the master with all its commands, and wait until it is gone."""
    with contextlib.suppress(*_MUX_ERRORS):
        connection = _Connection(path)
        with connection.socket:
            connection.socket.sendall(_packed(_TERMINATE, 0))
            connection.receive()
            connection.receive()  # the end of the connection


class MuxProcess:
    """A command over a master, with the streams and methods of a `subprocess.Popen`. Raises an OSError or EOFError if
    the master does not answer."""

    is_refused = False
    """True if sshd opened no session for the command."""

    def __init__(self, path: str, line: str, *, has_stdin: bool) -> None:
        self._code: int | None = None
        self._session: int | None = None
        self._connection = _Connection(path)
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            ours.callback(self._connection.socket.close)
            files: list[IO[bytes]] = []
            ends: list[int] = []
            for mode in ("wb", "rb", "rb"):
                near, far = os.pipe() if mode == "rb" else os.pipe()[::-1]
                files.append(ours.enter_context(os.fdopen(near, mode, buffering=0)))
                ends.append(far)
                theirs.callback(os.close, far)
            if not has_stdin:
                files[0].close()
            to = self._connection.socket
            # No terminal, X11, agent or subsystem; the environment is that of the master's SetEnv.
            to.sendall(_packed(_NEW_SESSION, 0, "", 0, 0, 0, 0, _NO_ESCAPE, "", line))
            for descriptor in ends:
                socket.send_fds(to, [b"\0"], [descriptor])
            to.setblocking(False)
            ours.pop_all()
        self.stdin = files[0] if has_stdin else None
        self.stdout, self.stderr = files[1:]

    def poll(self) -> int | None:
        """Return the exit code once the command has ended; None before that. Reads what the master has sent."""
        while self._code is None:
            try:
                message = self._connection.receive()
            except BlockingIOError:
                return None
            except _MUX_ERRORS:
                message = ()
            kind = message[0] if len(message) == 3 else None
            if kind == _OPENED and self._session is None:
                self._session = message[2]
            elif kind == _EXIT and message[1] == self._session and message[2] < 256:
                self._code = message[2]
            else:
                self.is_refused = kind in (_DENIED, _FAILED) and self._session is None
                self._code = NO_EXIT_CODE
        return self._code

    def wait(self) -> int:
        """Return the exit code of a command that has ended."""
        code = self.poll()
        return NO_EXIT_CODE if code is None else code

    def close(self) -> None:
        """Close the session. The thread that writes to stdin closes stdin, once nobody reads it."""
        self._connection.socket.close()
        self.stdout.close()
        self.stderr.close()
