"""Stdin for a remote command, fed interactively."""

from __future__ import annotations

import io
import queue


class StdinQueue(io.RawIOBase):
    """`send` adds a line, `end` closes the stream; `read` blocks until there is one."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def readable(self) -> bool:
        return True

    def send(self, line: bytes) -> None:
        self._lines.put(line)

    def end(self) -> None:
        self._lines.put(b"")

    def read(self, size: int = -1) -> bytes:
        del size
        return self._lines.get()
