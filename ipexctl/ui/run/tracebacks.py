"""Folds a traceback that another rank has already printed into one line. Each rank's own lines stay in the record."""

from __future__ import annotations

import re
from typing import Final

_OF_TORCH: Final = rb"(?:\[rank\d+\]:(?: |$))?"
"""What torch.distributed puts before the lines of a traceback."""
_BEGIN: Final = (
    rb"^(?:%b\n%b(?:During handling of|The above exception was) .*\n%b\n)?%bTraceback \(most recent call last\):\n"
    % ((_OF_TORCH,) * 4)
) + rb"(?:%b[ \t].*\n)*" % _OF_TORCH
_COMPLETE: Final = re.compile(_BEGIN + _OF_TORCH + rb"(?P<last>\S.*)\n", re.MULTILINE)
_UNFINISHED: Final = re.compile(_BEGIN + rb"\Z", re.MULTILINE)
_MOST: Final = 1 << 20
"""Bytes that wait for their end."""


class Tracebacks:
    def __init__(self) -> None:
        self._first: dict[bytes, int] = {}
        self._held: dict[int, bytes] = {}

    def feed(self, rank: int, prefix: bytes, lines: bytes, *, is_over: bool) -> bytes:
        """What to show of complete lines, each behind `prefix`. Lines of a traceback wait for its exception."""
        text = self._held.pop(rank, b"") + (b"\n" + lines).replace(b"\n" + prefix, b"\n")[1:]
        text = _COMPLETE.sub(lambda found: self._fold(rank, found), text)
        if not is_over and len(text) < _MOST and (unfinished := _UNFINISHED.search(text)):
            self._held[rank] = unfinished[0]
            text = text[: unfinished.start()]
        return re.sub(rb"(?m)^(?!\Z)", lambda _: prefix, text)

    def _fold(self, rank: int, found: re.Match[bytes]) -> bytes:
        if len(self._first) > 100:
            self._first.clear()
        text = re.sub(rb"(?m)^" + _OF_TORCH, b"", found[0])
        first = self._first.setdefault(text[text.index(b"Traceback") :], rank)
        return found[0] if first == rank else b"the same traceback as rank %d: %b\n" % (first, found["last"])
