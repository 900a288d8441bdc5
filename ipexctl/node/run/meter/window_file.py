"""Window files, lines of JSON: `ranks/NNNN.meter` of a rank, `ranks/NNNN.host` of the rank's host.

    {"schema": "ipexctl.windows/1", "started": 1764211550.0, "seconds": 10.0, "fields": ["steps_per_s", …]}
    [0,3.214,102.8,…]

A window's place is counted from the start; a place without a line is unknown. At CAPACITY places, each two become one.
Places follow this process's clock, because the clocks of hosts may differ.
"""

from __future__ import annotations

import contextlib
import json
import os
from itertools import zip_longest
from typing import Any, Iterator, Mapping, NamedTuple

from ipexctl.node.common.answer import Json, answer
from ipexctl.node.common.files import RunReference, open_private, remove_file
from ipexctl.node.common.frames import WindowsFile, emit_frames, encode_windows
from ipexctl.node.common.home import rundir_of
from ipexctl.node.common.json_records import decode, encode, parse_json
from ipexctl.node.run.meter import rank_profile
from ipexctl.node.run.meter.rates import HostRates, RankRates, merge

WINDOW = 10.0
RANK_SUFFIX, HOST_SUFFIX = ".meter", ".host"
SCHEMA = "ipexctl.windows/1"
MAX_LINE = 256
MAX_SENT = 16 << 20
"""Bytes of all files; 64 ranks on 64 hosts have 15 MB after a day. Beyond, only each 2nd, 4th, 8th … window is sent."""
MOST_DOUBLINGS = 20
"""A window then covers four months."""


CAPACITY = 2160
"""Places in a file: six hours in windows of ten seconds."""
MAX_FILE = MAX_LINE * (CAPACITY + 3)
KINDS: Mapping[str, Any] = {RANK_SUFFIX: RankRates, HOST_SUFFIX: HostRates}
SENT = (*KINDS, rank_profile.SUFFIX)
"""Profiles of ranks are sent with the windows."""


class _Header(NamedTuple):
    schema: str
    started: float
    """Start of the first place, in seconds since the epoch."""
    seconds: float
    fields: tuple[str, ...]

    def line(self) -> bytes:
        return json.dumps(encode(self)).encode() + b"\n"


class WindowWriter:
    """Writes the windows of one rank or host. The first window creates the file."""

    def __init__(self, path: str, rates: Any) -> None:
        self._path, self._rates = path, rates
        self._number = -1
        self._header = _Header(SCHEMA, 0.0, WINDOW, rates._fields)
        self._began = 0.0
        """Start of the first place, by the clock of `add`."""
        self._doublings = 0
        self._first: int | None = None
        self._last = -1
        """Place of the last window, before places were merged."""
        self._line = -1
        self._at = self._size = 0
        self._windows: list[RankRates | HostRates] = []

    def begin_attempt(self) -> None:
        """Let the next window begin an attempt: its number counts from the command's new start."""
        self._first = None

    def add(self, number: int, rates: RankRates | HostRates, now: float, at: float) -> None:
        """Write a window, unless the disk is full. `now` is monotonic, `at` in seconds since the epoch."""
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
        """Merge each two places, into a new file: a follower that reads the old file still sees it complete."""
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
        """Close the file, if a window was written."""
        if self._number >= 0:
            with contextlib.suppress(OSError):
                os.close(self._number)
            self._number = -1


def _encoded(place: int, rates: RankRates | HostRates) -> bytes:
    """Encode a window with four digits, more than the figures' accuracy."""
    short = [float(f"{value:.4g}") if isinstance(value, float) else value for value in rates]
    return json.dumps([place, *short], separators=(",", ":")).encode() + b"\n"


class RankWindows(NamedTuple):
    started: float
    """Start of the first window by node0's clock, in seconds since the epoch."""
    seconds: float
    windows: tuple[RankRates | None, ...]


class HostWindows(NamedTuple):
    started: float
    seconds: float
    windows: tuple[HostRates | None, ...]


def _read_header(line: bytes) -> _Header | None:
    try:
        header = decode(_Header, parse_json(line), "windows")
    except ValueError:
        return None
    return header if header.schema == SCHEMA and header.seconds > 0 else None


def _read(rates: Any, data: bytes) -> tuple[float, float, tuple[Any, ...]] | None:
    """Start of the first window, seconds per window, and all windows; None for an invalid file."""
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


def downsample(data: bytes, step: int) -> bytes:
    """Keep only every `step`th window of a file; each then stands for `step` windows."""
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
    """Decode a rank's file; None if it is damaged or of another version."""
    content = _read(RankRates, data)
    return None if content is None else RankWindows(*content)


def decode_host_windows(data: bytes) -> HostWindows | None:
    """Decode a host's file; None if it is damaged or of another version."""
    content = _read(HostRates, data)
    return None if content is None else HostWindows(*content)


def windows_of(rundir: str, max_sent: int = MAX_SENT) -> Iterator[WindowsFile]:
    """Yield the files of windows and the profiles of all ranks. If they are larger than `max_sent` bytes together,
    windows are left out."""
    directory = os.path.join(rundir, "ranks")
    try:
        names = sorted(name for name in os.listdir(directory) if os.path.splitext(name)[1] in SENT)
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
            yield WindowsFile(int(stem), suffix, downsample(data, step))


def read_windows(request: RunReference, _: object) -> Json:
    """Send the files of a run's windows as frames. Answers a call of the control machine."""
    with emit_frames() as writer:
        for file in windows_of(rundir_of(request)):
            writer.send(encode_windows(file))
    return {}


def main(action: str) -> int:
    """Answer the agent's call `read`, and return its exit code; 0 also if the caller has left."""
    try:
        return answer({"read": read_windows}[action])
    except BrokenPipeError:
        return 0
