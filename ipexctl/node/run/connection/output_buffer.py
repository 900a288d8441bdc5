"""Buffers a rank's output until the supervisor acknowledges it: in memory, then on disk, without blocking the rank."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Iterator

from ipexctl.node.common.frames import Chunk, StreamName

if TYPE_CHECKING:
    from ipexctl.node.run.connection.spill_file import SpillFile

MEMORY = 4 << 20
MAX_UNACKNOWLEDGED = 2 << 20
CHUNK_SIZE = 1 << 16
_CHUNK_OVERHEAD = 128


class OutputBuffer:
    """The buffer of one stream. `end` is the offset after the last byte put in."""

    def __init__(self, spill: SpillFile, rank: int, stream: StreamName, start: int = 0) -> None:
        self.rank, self.stream = rank, stream
        self.end = start
        self._spill = spill
        self._memory_used = 0
        self._unacknowledged_size = 0
        self._unacknowledged: deque[Chunk] = deque()
        self._waiting: deque[Chunk] = deque()

    @property
    def is_empty(self) -> bool:
        """True if the supervisor has acknowledged all output."""
        return not self._unacknowledged and not self._waiting and self._spill.is_empty

    def put(self, data: bytes) -> None:
        """Add output of the command: to memory, or to the disk if memory is full or the disk has output that comes
        before."""
        chunk = Chunk(self.rank, self.stream, data, self.end)
        self.end += len(data)
        if not self._spill.is_empty or self._memory_used + len(data) > MEMORY:
            self._spill.append(chunk)
        else:
            self._to_memory(chunk)

    def take(self) -> Iterator[Chunk]:
        """Yield the next chunks to send. Ends if there are none, or if MAX_UNACKNOWLEDGED bytes are on their way."""
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
        """Forget the chunks that the supervisor has. `end`: up to which offset it has written the output."""
        while self._unacknowledged and self._unacknowledged[0].end <= end:
            self._drop(self._unacknowledged.popleft())

    def rewind(self, start: int) -> None:
        """Let `take` yield all output again that the supervisor does not have. `start`: the offset up to which it has
        it."""
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
        """Remove the file with output that did not fit into memory."""
        self._spill.close()

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

    def _from_disk(self) -> None:
        while self._memory_used < MEMORY // 2:
            chunk = self._spill.pop()
            if chunk is None:
                return
            self._to_memory(chunk)
