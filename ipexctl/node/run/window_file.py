"""Files of windows: `ranks/NNNN.meter` of a rank, `ranks/NNNN.host` of the host of that rank. Lines of JSON.

The first line is a `_Header`; each other one is a window, the oldest first: its place in time, then its figures
in the order of the header's `fields`. Of a place without a line nothing is known: before a restart, or while a rank was
cut off.

    {"schema": "ipexctl.windows/1", "started": 1764211550.0, "seconds": 10.0, "fields": ["steps_per_s", …]}
    [0,3.214,102.8,…]

In come windows with the number that the rank gave them. The rules: no place is beyond CAPACITY, since
each two places become one when the file is full; a window that arrives twice counts once; a window that a full disk
refuses is left out, and so is a line that cannot be read. The places are by the clock of this process: those of the
hosts may differ.

A RunReference is answered with frames of kind W, one for each file of a run, then {"event": "done"}; a follower gets
the same at the end of the run (`follow.py`). Of a run whose files have more than MAX_SENT bytes together, each 2nd,
4th, 8th … window is sent, in place of as many.
"""

from __future__ import annotations

import contextlib
import json
import os
from itertools import zip_longest
from typing import Any, Iterator, Mapping, NamedTuple

from ipexctl.node.common.answer import Json, answer, emit_frames
from ipexctl.node.common.files import RunReference, open_private, remove_file
from ipexctl.node.common.frames import WindowsFile, encode_windows
from ipexctl.node.common.home import rundir_of
from ipexctl.node.common.json_parser import parse_json
from ipexctl.node.common.json_records import as_json, decode
from ipexctl.node.run.rates import HostRates, RankRates, merge

WINDOW = 10.0
RANK_SUFFIX, HOST_SUFFIX = ".meter", ".host"
SCHEMA = "ipexctl.windows/1"
BINARY = b"ipex"
"""How the files of version 0.4 and before begin."""
MAX_LINE = 256
MAX_SENT = 16 << 20
"""Bytes of all files together: 64 ranks on 64 hosts have 15 MB after a day."""
MOST_DOUBLINGS = 20
"""Then a window has four months, and the file more than anyone runs."""


CAPACITY = 2160
"""Places in a file: six hours in windows of ten seconds."""
MAX_FILE = MAX_LINE * (CAPACITY + 3)
KINDS: Mapping[str, Any] = {RANK_SUFFIX: RankRates, HOST_SUFFIX: HostRates}
"""The class of the figures in a file."""


class _Header(NamedTuple):
    schema: str
    started: float
    """The begin of the first place, in seconds since the epoch."""
    seconds: float
    fields: tuple[str, ...]

    def line(self) -> bytes:
        return json.dumps(as_json(self)).encode() + b"\n"


class WindowWriter:
    """Writes the windows of one rank or host. The file is made with the first one."""

    def __init__(self, path: str, rates: Any) -> None:
        """`rates`: the class of the figures."""
        self._path, self._rates = path, rates
        self._number = -1
        self._header = _Header(SCHEMA, 0.0, WINDOW, rates._fields)
        self._began = 0.0
        """By the clock of `add`: the begin of the first place."""
        self._doublings = 0
        self._first: int | None = None
        """The place of this attempt's window 0."""
        self._last = -1
        """The place of the last window, before places became one."""
        self._line = -1
        """The place of the last line."""
        self._at = self._size = 0
        """Where the last line begins and ends."""
        self._windows: list[RankRates | HostRates] = []
        """Those of the last line."""

    def begin_attempt(self) -> None:
        """The next windows are numbered from 0 again."""
        self._first = None

    def add(self, number: int, rates: RankRates | HostRates, now: float, at: float) -> None:
        """`now` is a clock that never goes back, `at` the time of day."""
        with contextlib.suppress(OSError):
            self._add(number, rates, now, at)

    def _add(self, number: int, rates: RankRates | HostRates, now: float, at: float) -> None:
        if self._number < 0:
            self._create((number + 1) * WINDOW, now, at)
        if self._first is None:
            self._first = max(0, round((now - self._began) / WINDOW) - number - 1)
        place = self._first + number
        if place <= self._last:
            return
        while place >> self._doublings >= CAPACITY:
            if self._doublings == MOST_DOUBLINGS:
                return
            self._double()
        line = place >> self._doublings
        if line != self._line:
            self._line, self._at, self._windows = line, self._size, []
        self._windows.append(rates)
        self._last = place
        data = _encoded(line, merge(self._windows))
        if os.pwrite(self._number, data, self._at) == len(data):
            self._size = self._at + len(data)
            os.ftruncate(self._number, self._size)

    def _create(self, ago: float, now: float, at: float) -> None:
        self._header = self._header._replace(started=at - ago)
        self._began, self._first = now - ago, 0
        number = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            self._size = os.pwrite(number, self._header.line(), 0)
        except OSError:
            os.close(number)
            raise
        self._number = number

    def _double(self) -> None:
        """Write a new file: a follower that reads the old one sees it whole."""
        with open(self._path, "rb") as file:
            content = _read(self._rates, file.read())
        windows = content[2] if content is not None else ()
        header = self._header._replace(seconds=2 * self._header.seconds)
        data = header.line()
        for place, pair in enumerate(zip_longest(windows[::2], windows[1::2])):
            if known := [window for window in pair if window is not None]:
                data += _encoded(place, merge(known))
        temporary = f"{self._path}.part"
        try:
            with open(temporary, "wb", opener=open_private) as file:
                file.write(data)
            number = os.open(temporary, os.O_RDWR | os.O_CLOEXEC)
            os.replace(temporary, self._path)
        except OSError:
            remove_file(temporary)
            raise
        os.close(self._number)
        self._number, self._header, self._size = number, header, len(data)
        self._doublings += 1
        self._line = -1

    def close(self) -> None:
        if self._number >= 0:
            with contextlib.suppress(OSError):
                os.close(self._number)
            self._number = -1


def _encoded(place: int, rates: RankRates | HostRates) -> bytes:
    """Numbers have four digits, which is more than they are known to."""
    short = [float(f"{value:.4g}") if isinstance(value, float) else value for value in rates]
    return json.dumps([place, *short], separators=(",", ":")).encode() + b"\n"


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


def _read_header(line: bytes) -> _Header | None:
    """None for a file that is damaged or of another version."""
    try:
        header = decode(_Header, parse_json(line), "windows")
    except ValueError:
        return None
    return header if header.schema == SCHEMA and header.seconds > 0 else None


def _read(rates: Any, data: bytes) -> tuple[float, float, tuple[Any, ...]] | None:
    """When the first window began, the length of each, and all of them."""
    first, *lines = data.split(b"\n")
    header = _read_header(first)
    if header is None:
        return None
    names = {place: name for place, name in enumerate(header.fields) if name in rates._fields}
    places = {}
    for line in lines:
        row = _row(line, len(header.fields))
        if row is not None and 0 <= row[0] < CAPACITY:
            place, *values = row
            places[place] = rates(**{name: values[at] for at, name in names.items() if values[at] is not None})
    windows = tuple(places.get(place) for place in range(max(places, default=-1) + 1))
    return header.started, header.seconds, windows


def _row(line: bytes, fields: int) -> list[Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    if type(row) is not list or len(row) != fields + 1 or type(row[0]) is not int:
        return None
    return row if all(value is None or (type(value) in _NUMBERS and value >= 0) for value in row) else None


_NUMBERS = (float, int, bool)


def thinned(data: bytes, step: int) -> bytes:
    """The content of a file with every so-manieth window alone, which then stands for so many."""
    first, *lines = data.split(b"\n")
    header = _read_header(first)
    if header is None or step < 2:
        return data
    kept = header._replace(seconds=header.seconds * step).line()
    for line in lines:
        row = _row(line, len(header.fields))
        if row is not None and row[0] % step == 0:
            kept += json.dumps([row[0] // step, *row[1:]], separators=(",", ":")).encode() + b"\n"
    return kept


def decode_rank_windows(data: bytes) -> RankWindows | None:
    """The content of a rank's file; None for one that is damaged or of another version."""
    content = _read(RankRates, data)
    return None if content is None else RankWindows(*content)


def decode_host_windows(data: bytes) -> HostWindows | None:
    """The same for a host."""
    content = _read(HostRates, data)
    return None if content is None else HostWindows(*content)


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
            yield WindowsFile(int(stem), suffix, thinned(data, step))


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
