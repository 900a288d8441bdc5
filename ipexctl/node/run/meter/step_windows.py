"""Windows of ten seconds: what a rank did in each since its command started; and the throughput of a run. Pure.

- Steps count from the end of the first: imports, compilation and the first step are not in `step_seconds`.
- A step counts in the window in which it ends, with its complete length and waiting.
- A pause between two steps, such as an evaluation, does not count, nor do steps that were profiled. Waiting for data
  does, no matter how long.
- A rank has a figure for samples if they are known for all but MOST_UNKNOWN of the time, and the run if all its ranks
  have one: accelerate's dispatching loader reads for all ranks in one of them.
- A run's steps are its median rank's, its samples the sum of the ranks; of one group's ranks, if ranks train in smaller
  groups than planned.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Iterable, NamedTuple, Sequence

from ipexctl.node.common.json_records import NATURAL, FieldDecoder
from ipexctl.node.common.records import Throughput, TrainingGroup
from ipexctl.node.run.meter.rank_notes import RankNotes  # noqa: TC001  # decoded by its name
from ipexctl.node.run.meter.rates import RankRates
from ipexctl.node.run.meter.window_file import WINDOW

if TYPE_CHECKING:
    from ipexctl.node.run.meter.meter_reader import StepRecord
    from ipexctl.node.run.meter.rates import Waiting

MOST_AT_ONCE = 360
"""Highest number of windows that one reading closes. After a longer break, older windows are dropped."""
RECENT = 6
"""Windows in the last minute."""
MOST_UNKNOWN = 0.05
LEAST_WHOLE = 0.9
"""Share of a window from which steps fill it."""
PAUSE, PAUSE_STEPS = 2.0, 20
"""A gap between steps is a pause if it is longer than PAUSE seconds and than PAUSE_STEPS usual steps."""
_NANO = 1e9


class StepWindow(NamedTuple):
    number: int
    """Number of the window, from 0 at the start of the rank's command."""
    seconds: float
    """WINDOW, except for the last window."""
    steps: int = 0
    step_seconds: float = 0.0
    """Seconds of the window in which steps were counted, without pauses."""
    samples: float | None = None
    data_wait: float | None = None
    """Fraction of the steps' time spent waiting for data; None without a step or a DataLoader."""
    reduce_wait: float | None = None
    notes: RankNotes | None = None
    gradients: float = 0.0
    is_fp32: bool = False
    worked: float = 0.0
    """Seconds of the steps that ended in the window: their complete length, without pauses."""
    group: int = 0
    """As in `StepRecord`; also 0 in the first window, unless it is the last, because a group may be made late."""
    is_unused: bool = False
    is_apart: bool = False
    nan_since: int = 0
    """As in `StepRecord`."""

    @property
    def is_possible(self) -> bool:
        """False for lengths that no window has. The supervisor ignores such a message."""
        return 0 < self.seconds <= 2 * WINDOW and self.step_seconds <= self.seconds

    def rates(self, waiting: Waiting) -> RankRates:
        """Return the window as rates. `waiting`: how the ranks of the run wait for each other (`rates.py`)."""
        # In a window with a pause, a step that began before it would count as if it had taken only the time inside.
        is_whole = self.step_seconds > LEAST_WHOLE * WINDOW
        step_seconds = self.step_seconds if is_whole else max(self.step_seconds, self.worked)
        is_known = self.samples is not None and step_seconds > 0
        notes = {} if self.notes is None else self.notes._asdict()
        return RankRates(
            steps_per_s=self.steps / step_seconds if step_seconds else 0.0,
            samples_per_s=(self.samples or 0.0) / step_seconds if is_known else None,
            data_wait=self.data_wait,
            collective_wait=self._collective_wait(waiting),
            **notes,
        )

    def _collective_wait(self, waiting: Waiting) -> float | None:
        if waiting == "shared":
            return self.reduce_wait
        notes = self.notes
        if waiting != "sleeps" or notes is None or notes.cpu is None or notes.queue is None:
            return None
        # If the main thread loads the data itself, `cpu` may include some of `data_wait`.
        return max(0.0, 1.0 - notes.cpu - notes.queue - (self.data_wait or 0.0))


FIELD_DECODERS: dict[str, FieldDecoder] = {**NATURAL}


class WindowMaker:
    def __init__(self, start: float) -> None:
        """`start`: when the command started, by the records' clock."""
        self._start = start
        self._number = 0
        self._first = float("inf")
        self._edge: StepRecord | None = None
        self._records: list[StepRecord] = []
        self._usual: deque[float] = deque(maxlen=64)
        self._last: StepRecord | None = None
        self._is_unused = False

    @property
    def next_end(self) -> float:
        """When the present window ends, by the clock of the records."""
        return self._start + (self._number + 1) * WINDOW

    @property
    def thread(self) -> int:
        """The kernel's number of the thread that made the last step; 0 before the first."""
        return self.newest.thread if self.newest is not None else 0

    @property
    def steps(self) -> int:
        """All steps so far, also those that share the newest record with the first."""
        return self.newest.steps if self.newest is not None else 0

    @property
    def usual_step(self) -> float:
        """Seconds; 0 if unknown."""
        records = [self._edge, *self._records] if self._edge is not None else []
        gaps = [(b.wall - a.wall) / _NANO / max(1, b.steps - a.steps) for a, b in zip(records, records[1:])]
        return median([*self._usual, *gaps]) if self._usual or gaps else 0.0

    @property
    def newest(self) -> StepRecord | None:
        """The newest record; None before the first."""
        return self._records[-1] if self._records else self._edge

    def add(self, records: Iterable[StepRecord]) -> None:
        """Take new records, oldest first. One whose time or sums go back does not count as steps."""
        for record in records:
            if record.is_unused:
                self._is_unused = True
                continue
            last = self._records[-1] if self._records else self._edge
            if last is None:
                self._edge, self._first = record, record.wall / _NANO
            elif record.wall > last.wall and all(new >= old for new, old in zip(record[1:5], last[1:5])):
                self._records.append(record)
            self._last = record

    def close_windows(self, now: float) -> list[StepWindow]:
        """Return the windows that have ended since the last call."""
        count = int((now - self._start) / WINDOW)
        self._number = max(self._number, count - MOST_AT_ONCE)
        windows = []
        while self._number < count:
            windows.append(self._close(self.next_end, WINDOW))
        return windows

    def close_last(self, now: float) -> list[StepWindow]:
        """Close all windows once the command has exited. Time after the last step does not count."""
        windows = self.close_windows(now)
        seconds = max(0.001, now - self._start - self._number * WINDOW)
        return [*windows, self._close(now, seconds, is_last=True)]

    def _close(self, end: float, seconds: float, *, is_last: bool = False) -> StepWindow:
        inside = [record for record in self._records if record.wall / _NANO <= end]
        self._records = self._records[len(inside) :]
        window = StepWindow(self._number, seconds, samples=0.0)
        if self._edge is not None:
            worked, paused = self._lengths([self._edge, *inside], end - seconds)
            newest = inside[-1] if inside else self._edge
            since = end - newest.wall / _NANO
            if is_last or newest.is_paused or self._is_pause(since, 1):
                paused += min(seconds, since)
            counted = max(0.0, min(seconds, end - self._first) - paused)
            window = window._replace(worked=worked, step_seconds=counted)
        if inside and self._edge is not None:
            window = _measure(window, self._edge, inside)
            self._edge = inside[-1]
        if self._last is not None:
            window = window._replace(nan_since=self._last.nan_since, is_apart=self._last.is_apart)
        if self._number or is_last:
            group = self._last.group if self._last is not None else 0
            window = window._replace(group=group, is_unused=self._is_unused)
        self._number += 1
        return window

    def _lengths(self, records: Sequence[StepRecord], begun: float) -> tuple[float, float]:
        worked = paused = 0.0
        for before, record in zip(records, records[1:]):
            gap, waited = (record.wall - before.wall) / _NANO, (record.wait - before.wait) / _NANO
            steps, length = max(1, record.steps - before.steps), gap
            if before.is_paused:
                length = 0.0
                paused += min(gap, max(0.0, record.wall / _NANO - begun))
            elif self._is_pause(gap - waited, steps):
                length = min(gap, median(self._usual) * steps + waited)
                paused += min(gap - length, max(0.0, record.wall / _NANO - begun))
            else:
                self._usual.append(gap / steps)
            worked += length
        return worked, paused

    def _is_pause(self, seconds: float, steps: int) -> bool:
        return seconds > PAUSE and bool(self._usual) and seconds > PAUSE_STEPS * median(self._usual) * steps


def _measure(window: StepWindow, before: StepRecord, inside: Sequence[StepRecord]) -> StepWindow:
    last = inside[-1]
    length, samples = last.wall - before.wall, last.samples - before.samples
    is_known = samples > 0 and not any(record.unknown for record in inside)
    return window._replace(
        steps=last.steps - before.steps,
        samples=float(samples) if is_known else None,
        data_wait=min(1.0, (last.wait - before.wait) / _NANO / window.worked) if is_known else None,
        reduce_wait=min(1.0, (last.reduce - before.reduce) / length),
        gradients=last.gradients,
        is_fp32=last.is_fp32,
    )


class RankThroughput:
    def __init__(self) -> None:
        self._total = _Sum()
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Let the windows of the next attempt begin at number 0. The total of all attempts goes on."""
        self._next = 0
        """Number of the next window. Windows repeated after a reconnect have lower numbers."""
        self._recent: deque[StepWindow] = deque(maxlen=RECENT)
        self._of_recent: Throughput | None = None
        """Throughput of `_recent`, computed once per window, because the status is written more often."""

    def add(self, window: StepWindow) -> None:
        """Take the rank's next window. One that is sent again is ignored."""
        if window.number < self._next:
            return
        self._next = window.number + 1
        self._recent.append(window)
        recent = _Sum()
        for entry in self._recent:
            recent.add(entry)
        self._of_recent = recent.result()
        self._total.add(window)

    def now(self, *, is_over: bool) -> Throughput | None:
        """Return the throughput of the last minute, or of the whole run if the rank is over; None before the first
        step."""
        return self._total.result() if is_over else self._of_recent


class _Sum:
    def __init__(self) -> None:
        self.seconds = self.unknown_seconds = self.sample_seconds = self.samples = self.wait = self.wait_seconds = 0.0
        self.steps = 0

    def add(self, window: StepWindow) -> None:
        self.seconds += window.worked
        self.steps += window.steps
        if window.samples is not None:
            self.samples += window.samples
            self.sample_seconds += window.worked
        else:
            self.unknown_seconds += window.worked
        if window.data_wait is not None and window.steps:
            self.wait += window.data_wait * window.worked
            self.wait_seconds += window.worked

    def result(self) -> Throughput | None:
        if not self.steps and not self.samples:
            return None
        is_known = self.samples > 0 and self.sample_seconds > 0 and self.unknown_seconds <= MOST_UNKNOWN * self.seconds
        is_wait_known = self.wait_seconds > 0 and self.seconds - self.wait_seconds <= MOST_UNKNOWN * self.seconds
        return Throughput(
            steps_per_s=self.steps / self.seconds if self.steps and self.seconds else None,
            samples_per_s=self.samples / self.sample_seconds if is_known else None,
            data_wait=self.wait / self.wait_seconds if is_wait_known else None,
            source="dataloader" if is_known else "steps",
        )


def run_throughput(
    ranks: Sequence[Throughput | None], group: TrainingGroup | None = None, tokens: Sequence[float | None] = ()
) -> Throughput | None:
    """Return the throughput of all ranks together; None if no rank has one.

    `tokens`: mean tokens of a sample, of each rank; None where unknown. Samples and tokens are counted only if all
    ranks have them.
    """
    measured = [rank for rank in ranks if rank is not None]
    if not measured:
        return None
    steps = [rank.steps_per_s for rank in measured if rank.steps_per_s is not None]
    waits = [rank.data_wait for rank in measured if rank.data_wait is not None]
    samples = [rank.samples_per_s for rank in measured if rank.samples_per_s is not None]
    total, source = None, "steps"
    if len(samples) == len(ranks):
        copies = group.planned / group.seen if group is not None else 1
        total, source = sum(samples) / copies, "dataloader"
    known = [mean for mean in tokens if mean is not None]
    return Throughput(
        steps_per_s=median(steps) if steps else None,
        samples_per_s=total,
        data_wait=sum(waits) / len(waits) if waits and len(waits) == len(ranks) else None,
        source=source,
        tokens_per_s=total * sum(known) / len(known) if total is not None and len(known) == len(ranks) else None,
    )
