"""A stdin whose lines are known only one by one, as what a command says is heard."""

from __future__ import annotations

import io
import queue


class StdinQueue(io.RawIOBase):
    """What is told goes to the command at once; reading waits for it."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def readable(self) -> bool:
        return True

    def tell_it(self, line: bytes) -> None:
        self._lines.put(line)

    def end(self) -> None:
        self._lines.put(b"")

    def read(self, size: int = -1) -> bytes:
        del size
        return self._lines.get()
