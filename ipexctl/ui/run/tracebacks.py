"""Folds a traceback that another rank has already printed into one line. Each rank's own lines stay in the record."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator
from typing import Final

_PREFIX: Final = re.compile(rb"\[rank\d+\]: ?")
"""What torch.distributed puts before the lines of a traceback."""
_START: Final = b"Traceback (most recent call last):"
_MORE: Final = (b" ", b"\t", b"During handling of the above", b"The above exception was the direct cause")
_MOST_LINES: Final = 2000
_MOST_KNOWN: Final = 100
_PATIENCE: Final = 1.0
"""Seconds without a line after which a complete traceback is shown."""


class _Held:
    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.texts: list[bytes] = []
        self.last = b""
        """The exception's line; empty until it came."""
        self.at = time.monotonic()


class Tracebacks:
    def __init__(self) -> None:
        self._first: dict[bytes, int] = {}
        self._held: dict[int, _Held] = {}

    def feed(self, rank: int, prefix: bytes, lines: bytes) -> bytes:
        """What to show of complete lines, each behind `prefix`. Lines of a traceback wait for its end."""
        return b"".join(self._feed(rank, prefix, lines))

    def waiting(self, *, is_over: bool = False) -> Collection[int]:
        """Ranks whose traceback is to be shown now."""
        latest = time.monotonic() - _PATIENCE
        return [rank for rank, held in self._held.items() if is_over or (held.last and held.at < latest)]

    def flush(self, rank: int, prefix: bytes) -> bytes:
        held = self._held.pop(rank)
        if len(self._first) >= _MOST_KNOWN:
            self._first.clear()
        first = self._first.setdefault(b"\n".join(held.texts), rank)
        if first == rank or not held.last:
            return b"".join(held.lines)
        return prefix + b"the same traceback as rank %d: %s\n" % (first, held.last)

    def _feed(self, rank: int, prefix: bytes, lines: bytes) -> Iterator[bytes]:
        for line in lines.split(b"\n")[:-1]:
            text = _PREFIX.sub(b"", line[len(prefix) :], count=1)
            held = self._held.get(rank)
            is_more = not text or text.startswith(_MORE) or text == _START
            if held is not None and ((held.last and not is_more) or len(held.lines) > _MOST_LINES):
                yield self.flush(rank, prefix)
                held = None
            if held is None and text != _START:
                yield line + b"\n"
                continue
            held = self._held.setdefault(rank, _Held())
            held.last = b"" if text == _START else held.last if is_more else text
            held.lines.append(line + b"\n")
            held.texts.append(text)
            held.at = time.monotonic()
