"""Output that node0's full disk has no room for: the supervisor holds it in memory, where followers read it.

Once the disk has room, a chunk is written there. A follower opens the memfd in `/proc/PID/fd` when it begins, so it has
the output even after the supervisor has exited. The header counts how often the file was emptied, and has its end; a
reader compares it before and after reading, so it never returns a partial or an old chunk.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import Iterator, NamedTuple

from ipexctl.node.common.frames import SUFFIXES, Chunk, StreamName

CAPACITY = 32 << 20
"""Further output waits in the ranks, as it does on a machine without memfd."""
_NAME = "ipexctl-output"
_HEADER = struct.Struct("!QQ")
_RECORD = struct.Struct("!IcQI")
_KINDS: dict[StreamName, bytes] = {stream: suffix[:1].encode() for stream, suffix in SUFFIXES.items()}
_STREAMS = {kind: stream for stream, kind in _KINDS.items()}


class Held(NamedTuple):
    position: int
    size: int


class UnstoredOutput:
    """The supervisor's side. `number` is the memfd, or None on a machine without memfd."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._emptied = 0
        self._end = _HEADER.size
        self._count = 0
        with contextlib.suppress(OSError, AttributeError):  # an old kernel, or a Python built without memfd
            self.number = os.memfd_create(_NAME)
            self._write_header()

    def put(self, rank: int, stream: StreamName, offset: int, data: bytes) -> Held | None:
        """Keep output in memory. `offset`: where in the stream's file it belongs. Return its place, or None if there is
        no room."""
        if self.number is None or self._end + len(data) > CAPACITY:
            return None
        held = Held(self._end + _RECORD.size, len(data))
        record = _RECORD.pack(rank, _KINDS[stream], offset, len(data)) + data
        try:
            if os.pwrite(self.number, record, self._end) != len(record):
                return None
        except OSError:  # out of memory
            return None
        self._end += len(record)
        self._count += 1
        self._write_header()
        return held

    def get(self, held: Held) -> bytes:
        """Return output that `put` kept."""
        assert self.number is not None, "a chunk is held"
        return os.pread(self.number, held.size, held.position)

    def drop(self) -> None:
        """Forget a chunk, because it is stored or lost. The last one frees the memory."""
        self._count -= 1
        if not self._count and self.number is not None:
            self._emptied += 1
            self._end = _HEADER.size
            self._write_header()
            with contextlib.suppress(OSError):
                os.ftruncate(self.number, _HEADER.size)

    def _write_header(self) -> None:
        if self.number is not None:
            os.pwrite(self.number, _HEADER.pack(self._emptied, self._end), 0)


class UnstoredReader:
    """A follower's side. Reads nothing if the supervisor is not on this machine."""

    def __init__(self, pid: int, number: int | None) -> None:
        self._number = -1
        self._emptied = 0
        self._position = _HEADER.size
        path = f"/proc/{pid}/fd/{number}"
        if number is not None:
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith(f"/memfd:{_NAME}"):
                    self._number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def new_chunks(self) -> Iterator[Chunk]:
        """Yield new chunks. A chunk at which the caller stops is yielded again by the next call."""
        header = self._header()
        if header is None:
            return
        emptied, end = header
        if emptied != self._emptied:
            self._emptied, self._position = emptied, _HEADER.size
        while self._position < end:
            head = os.pread(self._number, _RECORD.size, self._position)
            if len(head) < _RECORD.size:
                return
            rank, kind, offset, size = _RECORD.unpack(head)
            data = os.pread(self._number, size, self._position + _RECORD.size)
            now = self._header()
            if len(data) < size or kind not in _STREAMS or now is None or now[0] != emptied:
                return  # the file was emptied meanwhile
            yield Chunk(rank, _STREAMS[kind], data, offset)
            self._position += _RECORD.size + size

    def _header(self) -> tuple[int, int] | None:
        if self._number < 0:
            return None
        data = os.pread(self._number, _HEADER.size, 0)
        if len(data) < _HEADER.size:
            return None
        emptied, end = _HEADER.unpack(data)
        return emptied, end
