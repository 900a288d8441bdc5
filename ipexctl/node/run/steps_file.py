"""The file `ranks/NNNN.steps`: the windows of one rank's step meter, the oldest first, at most CAPACITY of them.

In come windows with the number that the rank gave them; out goes an entry of 8 bytes for each (`step_windows.py`), at
its place in time, or zeros where nothing is known: before a restart, or while a rank was cut off. The rules: the file
never has more than HEADER and CAPACITY entries, 69 kB, since each two become one when it is full; a window that
arrives twice is written twice at the same place; a window that a full disk refuses is left out.

The places are by the clock of this process: those of the hosts may differ.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import NamedTuple

from ipexctl.node.common.files import open_private, remove_file
from ipexctl.node.run.step_windows import (
    CAPACITY,
    ENTRY_SIZE,
    WINDOW,
    StepWindow,
    StoredWindow,
    decode,
    encode,
    merge,
    merge_pairs,
    stored,
)

MAGIC = b"ipexstp1"
_HEADER = struct.Struct("<8sddQ")
HEADER_SIZE = _HEADER.size
MOST_DOUBLINGS = 20
"""Then a window has four months, and the file more than anyone runs."""


class StepsWriter:
    """Writes the windows of one rank. The file is made with the first one: a script without steps has none."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._number = -1
        self._began = 0.0
        """By the clock of `add`: the begin of the first place."""
        self._started = 0.0
        """The same in seconds since the epoch."""
        self._doublings = 0
        self._first: int | None = None
        """The place of this attempt's window 0."""
        self._place = 0
        self._windows: dict[int, StoredWindow] = {}
        """What is in the entry that is written, once an entry has several windows."""

    def begin_attempt(self) -> None:
        """The next windows are numbered from 0 again."""
        self._first = None

    def add(self, window: StepWindow, now: float, at: float) -> None:
        """`now` is a clock that never goes back, `at` the time of day."""
        with contextlib.suppress(OSError):
            self._add(window, now, at)

    def _add(self, window: StepWindow, now: float, at: float) -> None:
        if self._number < 0:
            ago = (window.number + 1) * WINDOW
            self._began, self._started, self._first = now - ago, at - ago, 0
            self._number = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            os.pwrite(self._number, self._header(), 0)
        if self._first is None:
            self._first = max(0, round((now - self._began) / WINDOW) - window.number - 1)
        place = self._first + window.number
        while place >> self._doublings >= CAPACITY:
            if self._doublings == MOST_DOUBLINGS:
                return
            self._double()
        entry = place >> self._doublings
        if entry < self._place and self._doublings:  # it was written, with others that are not in memory any more
            return
        if entry != self._place:
            self._place, self._windows = entry, {}
        self._windows[place] = stored(window)
        windows = [stored(window)] if not self._doublings else list(self._windows.values())
        os.pwrite(self._number, encode(merge(windows)), HEADER_SIZE + entry * ENTRY_SIZE)

    def _header(self) -> bytes:
        return _HEADER.pack(MAGIC, self._started, WINDOW * (1 << self._doublings), 0)

    def _double(self) -> None:
        """Write a new file: a follower that reads the old one sees it whole."""
        entries = os.pread(self._number, CAPACITY * ENTRY_SIZE, HEADER_SIZE)
        self._doublings += 1
        temporary = f"{self._path}.part"
        try:
            with open(temporary, "wb", opener=open_private) as file:
                file.write(self._header() + merge_pairs(entries[: len(entries) - len(entries) % ENTRY_SIZE]))
            number = os.open(temporary, os.O_RDWR | os.O_CLOEXEC)
            os.replace(temporary, self._path)
        except OSError:
            self._doublings -= 1
            remove_file(temporary)
            raise
        os.close(self._number)
        self._number, self._windows = number, {}
        self._place = len(entries) // ENTRY_SIZE // 2

    def close(self) -> None:
        if self._number >= 0:
            with contextlib.suppress(OSError):
                os.close(self._number)
            self._number = -1


class StepsRecord(NamedTuple):
    started: float
    """The begin of the first window, in seconds since the epoch by the clock of node0."""
    seconds: float
    """The length of each window."""
    windows: tuple[StoredWindow | None, ...]


def read_steps(path: str) -> StepsRecord | None:
    """The windows of a rank; None without a file, or for one that is damaged or of a newer version."""
    try:
        with open(path, "rb") as file:
            data = file.read(HEADER_SIZE + CAPACITY * ENTRY_SIZE)
        magic, started, seconds, _ = _HEADER.unpack_from(data)
    except (OSError, struct.error):
        return None
    if magic != MAGIC or not seconds > 0:
        return None
    ends = range(HEADER_SIZE + ENTRY_SIZE, len(data) + 1, ENTRY_SIZE)
    return StepsRecord(started, seconds, tuple(decode(data[end - ENTRY_SIZE : end]) for end in ends))
