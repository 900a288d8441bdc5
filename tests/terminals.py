"""A program on a terminal of its own: what it shows, what is typed, and whether it leaves the terminal as it was."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class TerminalProgram:
    """A program on a terminal of its own."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.ours, self._theirs = pty.openpty()
        self.resize(80, 24)
        self.before: list[Any] = termios.tcgetattr(self.ours)
        self.seen = b""
        self.process = subprocess.Popen(
            argv,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def until(self, done: Callable[[], bool], seconds: float = 20.0) -> bool:
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            if select.select([self.ours], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self.ours, 65536)
        return done()

    def until_seen(self, text: bytes) -> bool:
        return self.until(lambda: text in self.seen)

    def until_gone(self) -> int | None:
        self.until(lambda: self.process.poll() is not None)
        self.until(lambda: False, 0.1)
        return self.process.poll()

    def type(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    @property
    def restored(self) -> bool:
        return bool(
            termios.tcgetattr(self.ours)[:6] == self.before[:6]
            and self.seen.rfind(b"\x1b[?1049l") > self.seen.rfind(b"\x1b[?1049h")
            and self.seen.rfind(b"\x1b[?25h") > self.seen.rfind(b"\x1b[?25l")
            and self.seen.rfind(b"\x1b[?7h") > self.seen.rfind(b"\x1b[?7l")
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.ours)
        os.close(self._theirs)
