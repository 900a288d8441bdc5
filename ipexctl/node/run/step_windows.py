"""Windows of the step meter: what a rank did in each ten seconds, how they are kept, and the throughput of a run. Pure.

In come the records of a rank's ring and the time, in the rank wrapper (`WindowMaker`); windows, in the supervisor
(`RankThroughput`, `run_throughput`); out go windows for the message `steps`, entries of 8 bytes for the file of a rank
(`encode`), and the figures of the status. The rules:

- The first record is where counting begins: imports, compilation and the first step are in no window.
- A step belongs to the window in which it ends. Its data wait and its processor time are those of its whole length,
  which may have begun in an earlier window.
- Samples are None where they can't be known. A rank has a figure if they are known for all but MOST_UNKNOWN of the
  time, and the run if all its ranks have one: accelerate's dispatching loader reads for all ranks in one of them.
- Steps of a run are those of its median rank, samples are the sum of the ranks. A value that the script prints
  (--metric) is taken as the run's, from the lowest rank that prints one.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from typing import TYPE_CHECKING, Iterable, NamedTuple, Sequence

from ipexctl.node.common.json_records import NATURAL, FieldDecoder
from ipexctl.node.common.records import Throughput

if TYPE_CHECKING:
    from ipexctl.node.run.meter_reader import StepRecord

WINDOW = 10.0
MOST_AT_ONCE = 360
"""Windows closed by one reading; after a longer pause nothing is known of the older ones."""
RECENT = 6
"""Windows that the figures of a run in progress are from."""
CAPACITY = 8640
"""Windows of a rank that are kept, 24 hours of them. When they are full, each two become one of twice the length."""
MOST_UNKNOWN = 0.05
ENTRY_SIZE = 8
_ENTRY = struct.Struct("<HHHBB")
_KNOWN, _WITH_SAMPLES, _WITH_CORES, _BY_METRIC = 1, 2, 4, 8
_UNKNOWN_WAIT, _WAIT_STEPS = 255, 200
_LOWEST, _PER_OCTAVE = -10, 2048
"""Numbers are kept as logarithms: from 2**-10 to 2**22, each at most 0.02 % off."""
_NANO = 1e9


class StepWindow(NamedTuple):
    number: int
    """From the first record of the rank's command on."""
    seconds: float
    """WINDOW, but for the last one."""
    steps: int
    samples: float | None = None
    data_wait: float | None = None
    """The part of the steps' time in which the rank waited for data, 0 to 1; None without a step or a DataLoader."""
    cores: float | None = None
    """Processor time of the rank's process by the steps' time; None without a step."""
    by_metric: bool = False
    """The samples are from the script's output."""

    @property
    def is_possible(self) -> bool:
        """Whether a rank wrapper may have sent it."""
        return 0 < self.seconds <= 2 * WINDOW


FIELD_DECODERS: dict[str, FieldDecoder] = {**NATURAL}


class WindowMaker:
    """Makes windows from the records of one command's ring."""

    def __init__(self, *, has_metric: bool = False) -> None:
        self._has_metric = has_metric
        self._start: float | None = None
        self._number = 0
        self._edge: StepRecord | None = None
        """The last record of the windows so far."""
        self._records: list[StepRecord] = []
        self._metrics: list[tuple[float, float]] = []

    def add(self, records: Iterable[StepRecord]) -> None:
        for record in records:
            last = self._records[-1] if self._records else self._edge
            if last is None:
                self._start = record.wall / _NANO if self._start is None else self._start
                self._edge = record
            elif record.wall > last.wall and all(new >= old for new, old in zip(record[1:5], last[1:5])):
                self._records.append(record)

    def add_metric(self, now: float, value: float) -> None:
        """A value in samples a second that the script has printed."""
        self._start = now if self._start is None else self._start
        self._metrics.append((now, value))

    def close_windows(self, now: float) -> list[StepWindow]:
        """The windows that have ended by then, in seconds of the records' clock."""
        if self._start is None:
            return []
        count = int((now - self._start) / WINDOW)
        self._number = max(self._number, count - MOST_AT_ONCE)
        windows = []
        while self._number < count:
            windows.append(self._close(self._start + (self._number + 1) * WINDOW, WINDOW))
        return windows

    def close_last(self, now: float) -> list[StepWindow]:
        """Also the one that has not ended: the command has exited."""
        windows = self.close_windows(now)
        # Until the last step: behind it, the script may have saved its model.
        ends = [record.wall / _NANO for record in self._records[-1:]] + [at for at, _ in self._metrics[-1:]]
        if self._start is not None and ends:
            begun = self._start + self._number * WINDOW
            windows.append(self._close(max(ends), max(0.001, max(ends) - begun)))
        return windows

    def _close(self, end: float, seconds: float) -> StepWindow:
        inside = [record for record in self._records if record.wall / _NANO <= end]
        self._records = self._records[len(inside) :]
        values = [value for at, value in self._metrics if at <= end]
        self._metrics = self._metrics[len(values) :]
        metric = values[-1] if values else None
        window = StepWindow(self._number, seconds, 0, None if self._has_metric else 0.0)
        if inside and self._edge is not None:
            window = _measure(window, self._edge, inside)
            self._edge = inside[-1]
        if self._has_metric:
            window = window._replace(samples=None if metric is None else metric * seconds, by_metric=True)
        self._number += 1
        return window


def _measure(window: StepWindow, before: StepRecord, inside: Sequence[StepRecord]) -> StepWindow:
    last = inside[-1]
    length, samples = last.wall - before.wall, last.samples - before.samples
    is_known = samples > 0 and not any(record.flags for record in inside)
    return window._replace(
        steps=last.steps - before.steps,
        samples=float(samples) if is_known else None,
        data_wait=min(1.0, (last.wait - before.wait) / length) if is_known else None,
        cores=(last.cpu - before.cpu) / length,
    )


class StoredWindow(NamedTuple):
    """A window in the record of a run, as rates."""

    steps_per_s: float
    samples_per_s: float | None = None
    data_wait: float | None = None
    cores: float | None = None
    by_metric: bool = False


def stored(window: StepWindow) -> StoredWindow:
    samples = None if window.samples is None else window.samples / window.seconds
    return StoredWindow(window.steps / window.seconds, samples, window.data_wait, window.cores, window.by_metric)


NOTHING_KNOWN = bytes(ENTRY_SIZE)
"""The entry of a window of which no message has arrived."""


def encode(window: StoredWindow | None) -> bytes:
    if window is None:
        return NOTHING_KNOWN
    flags = _KNOWN | (_BY_METRIC if window.by_metric else 0)
    flags |= 0 if window.samples_per_s is None else _WITH_SAMPLES
    flags |= 0 if window.cores is None else _WITH_CORES
    wait = _UNKNOWN_WAIT if window.data_wait is None else round(min(1.0, window.data_wait) * _WAIT_STEPS)
    numbers = map(_encode_number, (window.steps_per_s, window.samples_per_s or 0.0, window.cores or 0.0))
    return _ENTRY.pack(*numbers, wait, flags)


def decode(entry: bytes) -> StoredWindow | None:
    """None if nothing is known of that window."""
    steps, samples, cores, wait, flags = _ENTRY.unpack(entry)
    if not flags & _KNOWN:
        return None
    return StoredWindow(
        _decode_number(steps),
        _decode_number(samples) if flags & _WITH_SAMPLES else None,
        wait / _WAIT_STEPS if wait <= _WAIT_STEPS else None,
        _decode_number(cores) if flags & _WITH_CORES else None,
        bool(flags & _BY_METRIC),
    )


def _encode_number(value: float) -> int:
    if not value > 0:
        return 0
    return max(1, min(65535, 1 + round((math.log2(value) - _LOWEST) * _PER_OCTAVE)))


def _decode_number(code: int) -> float:
    return float(2.0 ** ((code - 1) / _PER_OCTAVE + _LOWEST)) if code else 0.0


def merge(windows: Sequence[StoredWindow | None]) -> StoredWindow | None:
    """One window in place of several of the same length, which follow each other."""
    known = [window for window in windows if window is not None]
    if not known:
        return None
    with_steps = [window for window in known if window.steps_per_s] or known
    samples = [window.samples_per_s for window in known if window.samples_per_s is not None]
    by_metric = any(window.by_metric for window in known)
    return StoredWindow(
        sum(window.steps_per_s for window in known) / len(known),
        sum(samples) / len(samples) if samples and (by_metric or len(samples) == len(known)) else None,
        _mean([window.data_wait for window in with_steps]),
        _mean([window.cores for window in with_steps]),
        by_metric,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def merge_pairs(entries: bytes) -> bytes:
    """All windows of a rank, as half as many of twice the length."""
    windows = [decode(entries[at : at + ENTRY_SIZE]) for at in range(0, len(entries), ENTRY_SIZE)]
    windows += [None] * (len(windows) % 2)
    return b"".join(encode(merge(pair)) for pair in zip(windows[::2], windows[1::2]))


class RankThroughput:
    """The figures of one rank in this attempt."""

    def __init__(self) -> None:
        self._next = 0
        """The number of the next window; one that comes a second time, after a reconnect, has a lower one."""
        self._recent: deque[StepWindow] = deque(maxlen=RECENT)
        self._of_recent: Throughput | None = None
        """Made once a window, as the status is written more often."""
        self._whole = _Sum()
        self._idle: list[StepWindow] = []
        """Windows since the last step: they count when another step follows, and not at the end of the training."""

    def add(self, window: StepWindow) -> None:
        if window.number < self._next:
            return
        self._next = window.number + 1
        self._recent.append(window)
        recent = _Sum()
        for entry in self._recent:
            recent.add(entry)
        self._of_recent = recent.result()
        if not window.steps and not window.samples:
            self._idle = [*self._idle, window][-MOST_AT_ONCE:]
            return
        for earlier in (*self._idle, window):
            self._whole.add(earlier)
        self._idle = []

    def now(self, *, is_over: bool) -> Throughput | None:
        """Of the last minute, or of the whole attempt from its first step to its last."""
        return self._whole.result() if is_over else self._of_recent


class _Sum:
    def __init__(self) -> None:
        self.seconds = self.unknown_seconds = self.sample_seconds = self.samples = self.wait = 0.0
        self.steps = self.wait_steps = 0
        self.by_metric = False

    def add(self, window: StepWindow) -> None:
        self.seconds += window.seconds
        self.steps += window.steps
        self.by_metric = self.by_metric or window.by_metric
        if window.samples is not None:
            self.samples += window.samples
            self.sample_seconds += window.seconds
        elif not window.by_metric:
            self.unknown_seconds += window.seconds
        if window.data_wait is not None and window.steps:
            self.wait += window.data_wait * window.steps
            self.wait_steps += window.steps

    def result(self) -> Throughput | None:
        if not self.steps and not self.samples:
            return None
        is_known = self.samples > 0 and self.unknown_seconds <= MOST_UNKNOWN * self.seconds
        is_wait_known = self.wait_steps > 0 and self.steps - self.wait_steps <= MOST_UNKNOWN * self.steps
        source = "metric" if self.by_metric and is_known else "dataloader" if is_known else "steps"
        return Throughput(
            steps_per_s=self.steps / self.seconds if self.steps else None,
            samples_per_s=self.samples / self.sample_seconds if is_known else None,
            data_wait=self.wait / self.wait_steps if is_wait_known else None,
            source=source,
        )


def run_throughput(ranks: Sequence[Throughput | None]) -> Throughput | None:
    """The figures of a run, from those of its ranks in their order."""
    measured = [rank for rank in ranks if rank is not None]
    if not measured:
        return None
    steps = [rank.steps_per_s for rank in measured if rank.steps_per_s is not None]
    waits = [rank.data_wait for rank in measured if rank.data_wait is not None]
    samples = [rank.samples_per_s for rank in measured if rank.samples_per_s is not None]
    printed = [rank.samples_per_s for rank in measured if rank.source == "metric"]
    total, source = None, "steps"
    if printed:
        total, source = printed[0], "metric"
    elif len(samples) == len(ranks):
        total, source = sum(samples), "dataloader"
    return Throughput(
        steps_per_s=_median(steps) if steps else None,
        samples_per_s=total,
        data_wait=sum(waits) / len(waits) if waits and len(waits) == len(ranks) else None,
        source=source,
    )


def _median(values: Sequence[float]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
