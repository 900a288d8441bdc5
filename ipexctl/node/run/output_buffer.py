"""Buffers output of a rank until the supervisor acknowledges it: in memory, then on disk, never blocking the rank.

In come the bytes of a stream and offsets that the supervisor has; out come chunks to send. Each byte has an offset in
its stream. The supervisor acknowledges written output by offset, and after a reconnect it sends the offset from which
it needs output again.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections import deque
from typing import BinaryIO, Iterator

from ipexctl.node.common.files import open_private, remove_file
from ipexctl.node.common.frames import HEAD, Chunk, FrameError, StreamName, decode_chunk, encode_chunk

MEMORY = 4 << 20
MAX_UNACKNOWLEDGED = 2 << 20
"""Bytes sent and not yet acknowledged."""
CHUNK_SIZE = 1 << 16
_CHUNK_OVERHEAD = 128
"""Bytes of overhead for each chunk."""


class OutputBuffer:
    """One stream. `end` is the offset after the last byte received."""

    def __init__(self, spill: str, rank: int, stream: StreamName, start: int = 0) -> None:
        self.rank, self.stream = rank, stream
        self.end = start
        self._spill = spill
        self._memory_used = 0
        self._unacknowledged_size = 0
        self._unacknowledged: deque[Chunk] = deque()
        self._waiting: deque[Chunk] = deque()
        self._file: BinaryIO | None = None
        self._read_at = 0
        self._write_at = 0

    @property
    def is_empty(self) -> bool:
        return not (self._unacknowledged or self._waiting or self._spilled)

    @property
    def _spilled(self) -> bool:
        return self._write_at > self._read_at

    def put(self, data: bytes) -> None:
        chunk = Chunk(self.rank, self.stream, data, self.end)
        self.end += len(data)
        if self._spilled or self._memory_used + len(data) > MEMORY:
            self._to_disk(chunk)
        else:
            self._to_memory(chunk)

    def take(self) -> Iterator[Chunk]:
        """The chunks that may be sent now, each once."""
        while self._unacknowledged_size < MAX_UNACKNOWLEDGED:
            if not self._waiting:
                self._from_disk()
            if not self._waiting:
                return
            chunk = self._waiting.popleft()
            self._unacknowledged.append(chunk)
            self._unacknowledged_size += len(chunk.data)
            yield chunk

    def acknowledge(self, end: int) -> None:
        while self._unacknowledged and self._unacknowledged[0].end <= end:
            self._drop(self._unacknowledged.popleft())

    def rewind(self, start: int) -> None:
        """Send everything from that offset on again."""
        self._waiting.extendleft(reversed(self._unacknowledged))
        self._unacknowledged.clear()
        self._unacknowledged_size = 0
        while self._waiting and self._waiting[0].offset < start:
            chunk = self._waiting.popleft()
            self._memory_used -= len(chunk.data) + _CHUNK_OVERHEAD
            if chunk.end > start:
                rest = chunk._replace(data=chunk.data[start - chunk.offset :], offset=start)
                self._waiting.appendleft(rest)
                self._memory_used += len(rest.data) + _CHUNK_OVERHEAD

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # NFS may report only here that the disk is full
                self._file.close()
            self._file = None
            remove_file(self._spill)

    def _to_memory(self, chunk: Chunk) -> None:
        if self._waiting:
            last = self._waiting[-1]
            if last.end == chunk.offset and len(last.data) + len(chunk.data) <= CHUNK_SIZE:
                self._waiting[-1] = last._replace(data=last.data + chunk.data)
                self._memory_used += len(chunk.data)
                return
        self._waiting.append(chunk)
        self._memory_used += len(chunk.data) + _CHUNK_OVERHEAD

    def _drop(self, chunk: Chunk) -> None:
        self._unacknowledged_size -= len(chunk.data)
        self._memory_used -= len(chunk.data) + _CHUNK_OVERHEAD

    def _to_disk(self, chunk: Chunk) -> None:
        """Append to the spill file; when the disk is full too, the recorder counts the gap in the offsets as lost."""
        frame = encode_chunk(chunk)
        try:
            if self._file is None:
                os.makedirs(os.path.dirname(self._spill), mode=0o700, exist_ok=True)
                self._file = open(self._spill, "w+b", buffering=0, opener=open_private)  # noqa: SIM115
            written = os.pwrite(self._file.fileno(), frame, self._write_at)
        except OSError:
            written = 0
        if written == len(frame):
            self._write_at += len(frame)

    def _from_disk(self) -> None:
        if self._file is None:
            return
        number = self._file.fileno()
        while self._spilled and self._memory_used < MEMORY // 2:
            try:
                size, kind = HEAD.unpack(os.pread(number, HEAD.size, self._read_at))
                payload = os.pread(number, size, self._read_at + HEAD.size)
                if len(payload) != size:
                    raise FrameError("the disk returns less than was written")
                chunk = decode_chunk(kind, payload)
            except (OSError, struct.error, FrameError):
                self._read_at = self._write_at
                break
            self._read_at += HEAD.size + size
            self._to_memory(chunk)
        if not self._spilled and self._write_at:
            self._read_at = self._write_at = 0
            with contextlib.suppress(OSError):
                os.ftruncate(number, 0)
