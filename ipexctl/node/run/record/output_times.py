"""The file `output.times`: when node0 received which bytes of the ranks' output."""

from __future__ import annotations

import contextlib
import os
import struct
from typing import Callable, Iterator, NamedTuple, Tuple

from ipexctl.node.common.frames import SUFFIXES, StreamName

WRITE_INTERVAL = 0.1
"""Seconds between two writes. Output between them gets the same time."""
MAX_FRAMES = 50_000
"""If the file has more entries, several are read as one, because each entry becomes a frame to the follower."""
ENTRIES_READ = 8192
_ENTRY = struct.Struct("!dQIc")
_KINDS: dict[StreamName, bytes] = {stream: suffix[:1].encode() for stream, suffix in SUFFIXES.items()}
_STREAMS = {kind: stream for stream, kind in _KINDS.items()}
OutputKey = Tuple[int, "StreamName"]


class TimeEntry(NamedTuple):
    at: float
    key: OutputKey
    end: int


class TimesWriter:
    """Appends entries. If the disk is full, an entry is written later, with a later time."""

    def __init__(self, path: str) -> None:
        self._number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._grown: dict[OutputKey, int] = {}
        self._written_at = 0.0

    def add(self, rank: int, stream: StreamName, end: int) -> None:
        """Note how long a stream's file is now. `end`: its size."""
        self._grown[rank, stream] = end

    def seconds_left(self, now: float) -> float:
        """Return the seconds until the next write is due; infinite if nothing is unwritten."""
        return max(0.0, self._written_at + WRITE_INTERVAL - now) if self._grown else float("inf")

    def write(self, now: float, at: float) -> None:
        """Write what was noted, unless WRITE_INTERVAL has not passed since the last write. `now` is monotonic, `at`
        seconds since the epoch."""
        if self._grown and now - self._written_at >= WRITE_INTERVAL:
            self._written_at = now
            self.write_all(at)

    def write_all(self, at: float) -> None:
        """Write all that was noted, with the time `at`. On a full disk it stays noted."""
        grown = self._grown.items()
        data = b"".join(_ENTRY.pack(at, end, rank, _KINDS[stream]) for (rank, stream), end in grown)
        with contextlib.suppress(OSError):
            if os.write(self._number, data) == len(data):
                self._grown.clear()
            else:
                size = os.fstat(self._number).st_size
                os.ftruncate(self._number, size - size % _ENTRY.size)

    def close(self) -> None:
        """Close the file. What was noted and not written is lost."""
        with contextlib.suppress(OSError):  # NFS may report only here that the disk is full
            os.close(self._number)


class TimesReader:
    """Yields entries, oldest first, while the file grows. A run of an older version has no file."""

    def __init__(
        self, path: str, files: int, *, exact: bool = False, on_read: Callable[[], None] | None = None
    ) -> None:
        """`exact`: never read several entries as one. `on_read` is called before entries are yielded."""
        self._on_read = on_read
        self.last: float | None = None
        self._number = -1
        self._offset = 0
        with contextlib.suppress(OSError):
            self._number = os.open(path, os.O_RDONLY)
        self._step = 0.0 if exact else self._step_seconds(files)

    @property
    def exists(self) -> bool:
        """False if the file could not be opened, as in a run of an older version."""
        return self._number >= 0

    def entries(self) -> Iterator[TimeEntry]:
        """Yield new entries until the end of the file: for each output file, the last entry of each step."""
        step: dict[OutputKey, TimeEntry] = {}
        began = 0.0
        while entries := self._read_entries(self._offset, ENTRIES_READ):
            if self._on_read is not None:
                self._on_read()
            for entry in entries:
                self._offset += _ENTRY.size
                self.last = entry.at
                if step and not 0 <= entry.at - began < self._step:
                    yield from step.values()
                    step.clear()
                began = began if step else entry.at
                step[entry.key] = entry
        yield from step.values()

    def _read_entries(self, offset: int, count: int) -> list[TimeEntry]:
        if self._number < 0:
            return []
        data = os.pread(self._number, count * _ENTRY.size, offset)
        complete = data[: len(data) - len(data) % _ENTRY.size]
        return [
            TimeEntry(at, (rank, _STREAMS.get(kind, "stdout")), end)
            for at, end, rank, kind in _ENTRY.iter_unpack(complete)
        ]

    def _step_seconds(self, files: int) -> float:
        count = os.fstat(self._number).st_size // _ENTRY.size if self.exists else 0
        if count <= MAX_FRAMES:
            return 0.0
        first, last = self._read_entries(0, 1)[0], self._read_entries((count - 1) * _ENTRY.size, 1)[0]
        return max(0.0, (last.at - first.at) * files / MAX_FRAMES)
