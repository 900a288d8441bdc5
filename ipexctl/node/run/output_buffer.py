"""What a rank has printed and its supervisor hasn't yet: in memory, then on the node's disk, never in the rank's way.

Each byte has its offset in its stream; what the supervisor has written down it acknowledges by
offset, and after a lost connection it says from where it wants to hear again.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from typing import BinaryIO, Iterator, Tuple

MEMORY = 4 << 20
WINDOW = 2 << 20
"""Bytes sent and not yet acknowledged."""
PIECE = 1 << 16
_EACH = 128
"""What keeping a piece costs beside its bytes."""
_RECORD = struct.Struct("!QI")
Piece = Tuple[int, bytes]


class OutputBuffer:
    """One stream. `end` is the offset behind the last byte that came in."""

    def __init__(self, spill: str, start: int = 0, memory: int = MEMORY) -> None:
        self.end = start
        self.lost = 0
        """Bytes there was no room for anywhere. Their offsets are left out."""
        self._spill = spill
        self._memory = memory
        self._held = 0
        self._in_flight = 0
        self._flying: deque[Piece] = deque()
        self._waiting: deque[Piece] = deque()
        self._file: BinaryIO | None = None
        self._read_at = 0
        self._write_at = 0

    @property
    def is_empty(self) -> bool:
        return not (self._flying or self._waiting or self._spilled)

    @property
    def _spilled(self) -> bool:
        return self._write_at > self._read_at

    def put(self, data: bytes) -> None:
        offset = self.end
        self.end += len(data)
        if self._spilled or self._held + len(data) > self._memory:
            self._to_disk(offset, data)
        else:
            self._keep(offset, data)

    def take(self) -> Iterator[Piece]:
        """What may be sent now, each piece once."""
        while self._in_flight < WINDOW:
            if not self._waiting:
                self._from_disk()
            if not self._waiting:
                return
            piece = self._waiting.popleft()
            self._flying.append(piece)
            self._in_flight += len(piece[1])
            yield piece

    def acknowledge(self, upto: int) -> None:
        while self._flying and self._flying[0][0] + len(self._flying[0][1]) <= upto:
            self._drop(self._flying.popleft())

    def rewind(self, upto: int) -> None:
        """The other side has everything before that offset, and wants the rest again."""
        self._waiting.extendleft(reversed(self._flying))
        self._flying.clear()
        self._in_flight = 0
        while self._waiting and self._waiting[0][0] < upto:
            offset, data = self._waiting.popleft()
            self._held -= len(data) + _EACH
            if offset + len(data) > upto:
                rest = data[upto - offset :]
                self._waiting.appendleft((upto, rest))
                self._held += len(rest) + _EACH

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            try:
                os.unlink(self._spill)
            except OSError:
                return

    def _keep(self, offset: int, data: bytes) -> None:
        if self._waiting:
            last, before = self._waiting[-1]
            if last + len(before) == offset and len(before) + len(data) <= PIECE:
                self._waiting[-1] = (last, before + data)
                self._held += len(data)
                return
        self._waiting.append((offset, data))
        self._held += len(data) + _EACH

    def _drop(self, piece: Piece) -> None:
        self._in_flight -= len(piece[1])
        self._held -= len(piece[1]) + _EACH

    def _to_disk(self, offset: int, data: bytes) -> None:
        """Behind what is there already; where the disk is full too, the training goes on and the gap is counted."""
        record = _RECORD.pack(offset, len(data)) + data
        try:
            if self._file is None:
                os.makedirs(os.path.dirname(self._spill), mode=0o700, exist_ok=True)
                self._file = open(self._spill, "w+b", buffering=0)  # noqa: SIM115
            written = os.pwrite(self._file.fileno(), record, self._write_at)
        except OSError:
            written = 0
        if written < len(record):
            self.lost += len(data)
            return
        self._write_at += len(record)

    def _from_disk(self) -> None:
        if self._file is None:
            return
        number = self._file.fileno()
        while self._spilled and self._held < self._memory // 2:
            try:
                offset, size = _RECORD.unpack(os.pread(number, _RECORD.size, self._read_at))
                data = os.pread(number, size, self._read_at + _RECORD.size)
            except (OSError, struct.error):
                data, size = b"", -1
            if len(data) != size:  # a disk that gives back less than it took
                self.lost += self._write_at - self._read_at
                self._read_at = self._write_at
                break
            self._read_at += _RECORD.size + size
            self._keep(offset, data)
        if not self._spilled and self._write_at:
            self._read_at = self._write_at = 0
            try:
                os.ftruncate(number, 0)
            except OSError:
                return
