"""Files of windows: `ranks/NNNN.meter` of a rank, `ranks/NNNN.host` of the host of that rank; the oldest window first.

In come windows with the number that the rank gave them; out goes an entry of fixed size for each (`window_codec.py`),
at its place in time, or zeros where nothing is known: before a restart, or while a rank was cut off. The rules: the
file never has more than a header and the capacity of its kind, since each two entries become one when it is full; a
window that arrives twice is written twice at the same place; a window that a full disk refuses is left out.

The places are by the clock of this process: those of the hosts may differ.

A RunReference is answered with frames of kind W, one for each file of a run, then {"event": "done"}; a follower gets
the same at the end of the run (`follow.py`). Of a run whose files have more than MAX_SENT bytes together, each 2nd,
4th, 8th … window is sent, in place of as many.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import Any, Generic, Iterator, Mapping, NamedTuple

from ipexctl.node.common.answer import Json, answer, emit_frames
from ipexctl.node.common.files import RunReference, open_private, remove_file
from ipexctl.node.common.frames import WindowsFile, encode_windows
from ipexctl.node.common.home import rundir_of
from ipexctl.node.run.window_codec import HOST_WINDOWS, RANK_WINDOWS, HostRates, RankRates, Rates, WindowKind

WINDOW = 10.0
RANK_SUFFIX, HOST_SUFFIX = ".meter", ".host"
_HEADER = struct.Struct("<8sdd24s")
HEADER_SIZE = _HEADER.size
MAX_LABEL = 24
MAX_SENT = 16 << 20
"""Bytes of all files together: 64 ranks have 5 MB after a day, 1,024 ranks 54 MB."""
MOST_DOUBLINGS = 20
"""Then a window has four months, and the file more than anyone runs."""


class WindowWriter(Generic[Rates]):
    """Writes the windows of one rank or host. The file is made with the first one."""

    def __init__(self, path: str, kind: WindowKind[Rates]) -> None:
        self._path, self._kind = path, kind
        self._number = -1
        self._label = b""
        self._began = 0.0
        """By the clock of `add`: the begin of the first place."""
        self._started = 0.0
        """The same in seconds since the epoch."""
        self._doublings = 0
        self._first: int | None = None
        """The place of this attempt's window 0."""
        self._place = 0
        self._windows: dict[int, Rates] = {}
        """What is in the entry that is written, once an entry has several windows."""

    def begin_attempt(self) -> None:
        """The next windows are numbered from 0 again."""
        self._first = None

    def add(self, number: int, rates: Rates, now: float, at: float, label: str = "") -> None:
        """`now` is a clock that never goes back, `at` the time of day; the first label is kept."""
        with contextlib.suppress(OSError):
            self._add(number, rates, now, at, label)

    def _add(self, number: int, rates: Rates, now: float, at: float, label: str) -> None:
        if self._number < 0:
            ago = (number + 1) * WINDOW
            self._label = label.encode(errors="replace")[:MAX_LABEL]
            self._began, self._started, self._first = now - ago, at - ago, 0
            self._number = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            os.pwrite(self._number, self._header(), 0)
        if self._first is None:
            self._first = max(0, round((now - self._began) / WINDOW) - number - 1)
        place = self._first + number
        while place >> self._doublings >= self._kind.capacity:
            if self._doublings == MOST_DOUBLINGS:
                return
            self._double()
        entry = place >> self._doublings
        if entry < self._place and self._doublings:  # it was written, with others that are not in memory any more
            return
        if entry != self._place:
            self._place, self._windows = entry, {}
        self._windows[place] = rates
        windows = [rates] if not self._doublings else list(self._windows.values())
        data = self._kind.encode(self._kind.merge(windows))
        os.pwrite(self._number, data, HEADER_SIZE + entry * self._kind.size)

    def _header(self) -> bytes:
        return _HEADER.pack(self._kind.magic, self._started, WINDOW * (1 << self._doublings), self._label)

    def _double(self) -> None:
        """Write a new file: a follower that reads the old one sees it whole."""
        size = self._kind.size
        entries = os.pread(self._number, self._kind.capacity * size, HEADER_SIZE)
        self._doublings += 1
        temporary = f"{self._path}.part"
        try:
            with open(temporary, "wb", opener=open_private) as file:
                file.write(self._header() + self._kind.merge_pairs(entries[: len(entries) - len(entries) % size]))
            number = os.open(temporary, os.O_RDWR | os.O_CLOEXEC)
            os.replace(temporary, self._path)
        except OSError:
            self._doublings -= 1
            remove_file(temporary)
            raise
        os.close(self._number)
        self._number, self._windows = number, {}
        self._place = len(entries) // size // 2

    def close(self) -> None:
        if self._number >= 0:
            with contextlib.suppress(OSError):
                os.close(self._number)
            self._number = -1


class RankWindows(NamedTuple):
    started: float
    """The begin of the first window, in seconds since the epoch by the clock of node0."""
    seconds: float
    """The length of each window."""
    windows: tuple[RankRates | None, ...]


class HostWindows(NamedTuple):
    started: float
    seconds: float
    windows: tuple[HostRates | None, ...]
    iface: str = ""
    """The interface whose bytes are those of the run; empty if all count."""


class _Content(NamedTuple):
    started: float
    seconds: float
    label: str
    entries: tuple[bytes, ...]


def _content(kind: WindowKind[Rates], data: bytes) -> _Content | None:
    try:
        magic, started, seconds, label = _HEADER.unpack_from(data)
    except struct.error:
        return None
    if magic != kind.magic or not 0 < seconds < float("inf") or not abs(started) < float("inf"):
        return None
    ends = range(HEADER_SIZE + kind.size, min(len(data), max_size(kind)) + 1, kind.size)
    entries = tuple(data[end - kind.size : end] for end in ends)
    return _Content(started, seconds, label.rstrip(b"\0").decode(errors="replace"), entries)


def max_size(kind: WindowKind[Rates]) -> int:
    """Bytes of a file at most."""
    return HEADER_SIZE + kind.capacity * kind.size


KINDS: Mapping[str, WindowKind[Any]] = {RANK_SUFFIX: RANK_WINDOWS, HOST_SUFFIX: HOST_WINDOWS}


def thinned(kind: WindowKind[Rates], data: bytes, step: int) -> bytes:
    """The content of a file with every so-manieth window alone, which then stands for so many."""
    content = _content(kind, data)
    if content is None or step < 2:
        return data
    header = _HEADER.pack(kind.magic, content.started, content.seconds * step, content.label.encode())
    return header + b"".join(content.entries[::step])


def decode_rank_windows(data: bytes) -> RankWindows | None:
    """The content of a rank's file; None for one that is damaged or of a newer version."""
    content = _content(RANK_WINDOWS, data)
    if content is None:
        return None
    return RankWindows(content.started, content.seconds, tuple(map(RANK_WINDOWS.decode, content.entries)))


def decode_host_windows(data: bytes) -> HostWindows | None:
    """The same for a host."""
    content = _content(HOST_WINDOWS, data)
    if content is None:
        return None
    windows = tuple(map(HOST_WINDOWS.decode, content.entries))
    return HostWindows(content.started, content.seconds, windows, content.label)


def windows_of(rundir: str, max_sent: int = MAX_SENT) -> Iterator[WindowsFile]:
    """The files, those of a rank together."""
    directory = os.path.join(rundir, "ranks")
    try:
        names = sorted(name for name in os.listdir(directory) if os.path.splitext(name)[1] in KINDS)
    except OSError:
        return
    sizes = {name: os.path.getsize(os.path.join(directory, name)) for name in names}
    step = 1
    while sum(sizes.values()) // step > max_sent:
        step *= 2
    for name in names:
        stem, suffix = os.path.splitext(name)
        try:
            with open(os.path.join(directory, name), "rb") as file:
                data = file.read()
        except OSError:
            continue
        if stem.isdigit():
            yield WindowsFile(int(stem), suffix, thinned(KINDS[suffix], data, step))


def read_windows(request: RunReference, _: object) -> Json:
    with emit_frames() as writer:
        for file in windows_of(rundir_of(request)):
            writer.send(encode_windows(file))
    return {}


def main(action: str) -> int:
    try:
        return answer({"read": read_windows}[action])
    except BrokenPipeError:
        return 0
