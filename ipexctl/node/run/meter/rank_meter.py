"""The meter in the rank wrapper: reads the command's step ring and /proc, and makes windows of them.

One rank of each host also sends `host`. After a reconnect, the windows of the last minute are sent again, because
messages may be lost with a connection.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Sequence, Union

from ipexctl.node.common.json_records import decode, encode, parse_json
from ipexctl.node.common.records import Stepping
from ipexctl.node.common.training import RankTraining
from ipexctl.node.run.meter.host_notes import HostNotes, HostProbe
from ipexctl.node.run.meter.meter_reader import MeterReader
from ipexctl.node.run.meter.rank_notes import RankProbe
from ipexctl.node.run.meter.rank_profile import ProfileFile, RankProfile, StepCount
from ipexctl.node.run.meter.step_windows import RECENT, StepWindow, WindowMaker

if TYPE_CHECKING:
    from ipexctl.node.common.answer import Json

VARIABLE = "IPEXCTL_METER"
MOST_UNSENT = 360
"""Windows kept while the supervisor can't be reached: an hour's."""
Window = Union[StepWindow, HostNotes, RankProfile, RankTraining]
_KINDS = {HostNotes: "host", RankProfile: "profile", RankTraining: "training"}


class MeteredHost(NamedTuple):
    cores: Sequence[int]
    iface: str


class RankMeter:
    def __init__(self, *, is_on: bool, host: MeteredHost | None = None, profile: str = "", sharers: int = 1) -> None:
        """`profile`: path of the file in which the command leaves its profile; empty unless its start is profiled.
        `sharers`: ranks of the host."""
        self._sharers = sharers
        self._is_on = self.is_on = is_on
        self._reader = MeterReader.create() if is_on else None
        self.profile = profile
        self._profile = ProfileFile(profile) if profile else None
        self._attempt = self._request = 0
        """Of the last request for a profile."""
        self._windows: WindowMaker | None = None
        self._host = self.host = host
        self._probe: RankProbe | None = None
        self._host_probe: HostProbe | None = None
        self._stepping: Stepping | None = None
        self._document = b""
        """The last that was read."""
        self._unsent: deque[Window] = deque(maxlen=MOST_UNSENT)
        self._sent: deque[Window] = deque(maxlen=RECENT if host is None else 2 * RECENT)

    @property
    def next_end(self) -> float:
        """When the present window ends, by the monotonic clock; infinite if nothing is measured."""
        return self._windows.next_end if self._windows is not None else float("inf")

    @property
    def next_read(self) -> float:
        """When `read_host` is due, by the monotonic clock; infinite unless this rank measures its host."""
        probe = self._host_probe if self._windows is not None else None
        return probe.next_read if probe is not None else float("inf")

    def read_host(self, now: float) -> None:
        """Read the host's network interface between two windows. Does nothing unless this rank measures its host."""
        if self._host_probe is not None:
            self._host_probe.read(now)

    def prepare(self, environ: dict[str, str]) -> dict[str, str]:
        """Return the command's environment with the variables by which it finds the meter; unchanged if nothing is
        measured."""
        profile = self._profile.prepare() if self._profile is not None else {}
        return environ if self._reader is None else {**environ, VARIABLE: self._reader.path, **profile}

    def start(self, now: float) -> None:
        """Begin to measure, at the moment at which the command starts."""
        if self._is_on:
            self._windows = WindowMaker(now)
            self._probe = RankProbe(now, sharers=self._sharers)
        if self._is_on and self._host is not None:
            self._host_probe = HostProbe(self._host.cores, self._host.iface, now)
            self._host_probe.take(now)

    def poll(self, pids: Sequence[int], now: float) -> None:
        """Read the ring and the processes. After 20 seconds without a call, records are lost."""
        if self._windows is None:
            return
        self._read_ring(self._windows)
        self._read_profile()
        if self._probe is not None:
            self._probe.update(pids, self._windows.thread, now)
        self._read_document()
        closed = self._windows.close_windows(now)
        if closed:
            self._add(closed)
            self._note_host(closed[-1], now)

    def steps(self) -> int | None:
        """Return how many optimizer steps the command has made; None if they are not counted."""
        if self._reader is None or self._windows is None:
            return None
        self._read_ring(self._windows)
        return self._windows.steps

    def count_steps(self, request: str, now: float) -> StepCount:
        """Return the answer to a request to count: steps so far, and how fast they are. All are 0 before the first
        step."""
        return StepCount(request, *(self.stepping(now) or ()))

    def stepping(self, now: float) -> Stepping | None:
        """Return how many steps the command has made, and how fast; None before the first. After the command's end,
        return what it was at the end."""
        windows, reader = self._windows, self._reader
        if windows is not None and reader is not None:
            windows.add(reader.read())
            if windows.newest is not None:
                since = max(0.0, now - windows.newest.wall / 1e9)
                self._stepping = Stepping(reader.steps_made(), windows.usual_step, since)
        return self._stepping

    def ask_for_profile(self, path: str, attempt: int, request: int, after_step: int) -> None:
        """Have the command profile the steps after `after_step` into the file `path`. Does nothing if nothing is
        measured."""
        if self._reader is not None:
            self._profile, self._attempt, self._request = ProfileFile(path), attempt, request
            self._profile.prepare()
            self._reader.ask_for_profile(after_step, path)

    def finish(self, now: float) -> None:
        """Read everything for the last time, and close the ring and the last window. A second call does no harm."""
        self._read_profile()
        if self._windows is not None:
            self.stepping(now)
        self._read_document()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._windows is not None:
            closed = self._windows.close_last(now)
            self._add(closed)
            self._note_host(closed[-1], now)
            self._windows = None

    def _read_ring(self, windows: WindowMaker) -> None:
        if self._reader is not None:
            windows.add(self._reader.read())

    def _read_profile(self) -> None:
        profile = self._profile.read() if self._profile is not None else None
        if profile is not None:
            self._unsent.append(profile._replace(attempt=self._attempt, request=self._request))

    def _read_document(self) -> None:
        document = self._reader.document() if self._reader is not None else b""
        if document == self._document:
            return
        with contextlib.suppress(ValueError):  # half-written: the next one is whole
            self._unsent.append(decode(RankTraining, parse_json(document), "the training"))
            self._document = document

    def _add(self, closed: Sequence[StepWindow]) -> None:
        notes = self._probe.take() if self._probe is not None else None
        self._unsent.extend(window._replace(notes=notes) for window in closed)

    def _note_host(self, window: StepWindow, now: float) -> None:
        if self._host_probe is not None:
            rates = self._host_probe.take(now)
            if rates is not None:
                self._unsent.append(HostNotes(window.number, window.seconds, rates, self._host_probe.iface))

    def take(self) -> list[tuple[str, Json]]:
        """Return what is new as messages: type and fields of each."""
        windows = list(self._unsent)
        self._unsent.clear()
        self._sent.extend(windows)
        return [(_KINDS.get(type(window), "window"), encode(window)) for window in windows]

    def rewind(self) -> None:
        """Have `take` return the last minute's messages again, because a broken connection may have lost them."""
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
