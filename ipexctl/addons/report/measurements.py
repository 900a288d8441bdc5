"""Reduce a run's measurements to few columns of time, so that a page stays small. Pure.

- A rank measures windows of about 10 s. Most windows do not fit into one column; each column gets the share that lies
  in it.
- A window without a step, as between two attempts, does not count in a step rate. It counts only if steps are so rare
  that a window of a healthy training may have none (`RARE_STEPS`).
- Times of windows, events and columns are seconds since the epoch by node0's clock. Those of a `RunPhase` are seconds
  since the start of the checks.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from statistics import median
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from ipexctl.node.common.records import Failure, Throughput, as_number
from ipexctl.node.run.meter.rates import HostRates, RankRates
from ipexctl.node.run.meter.window_file import HostWindows, RankWindows
from ipexctl.run.why.read_snapshot import PrintedNumber, RunSnapshot
from ipexctl.run.why.timeline import RARE_STEPS

MAX_COLUMNS: Final = 400
MAX_CELLS: Final = 120_000
"""Limit on the cells of all ranks together: more ranks get fewer columns each, but at least `_MIN_COLUMNS`."""
MAX_POINTS: Final = 24_000
"""Limit on the points of all hosts' curves together: more hosts get fewer columns each, but at least 20."""
_MIN_COLUMNS: Final = 60


class Window(NamedTuple):
    """What a rank measured in a window of time."""

    start: float
    """Seconds since the epoch, by node0's clock."""
    seconds: float
    """Length of the window."""
    steps: float
    """Steps in the window; may not be a whole number, because the record has the rate."""
    samples: float | None = None
    """Samples in the window; None if they are not counted."""
    waited: float | None = None
    """Seconds of waiting for data or other ranks; None if neither is measured."""
    cpu: float | None = None
    """Seconds that the stepping thread and the backward threads were on a processor; None if not measured."""
    memory: float | None = None
    """Memory of the rank's processes, in bytes; None if not measured."""


class HostWindow(NamedTuple):
    """What one rank of a host measured for the host, in a window of time."""

    start: float
    """Seconds since the epoch, by node0's clock."""
    seconds: float
    """Length of the window."""
    sent: float | None
    """Bytes/s over the run's network interface; None if not measured."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """All that a run measured and printed. Empty fields were not measured, or the record lacks them."""

    ranks: Mapping[int, Sequence[Window]] = field(default_factory=dict, hash=False)
    """Rank → its windows, the earliest first."""
    hosts: Mapping[str, Sequence[HostWindow]] = field(default_factory=dict, hash=False)
    """Host → its windows, the earliest first."""
    losses: tuple[PrintedNumber, ...] = ()
    """Losses that rank 0 printed."""
    series: Mapping[str, tuple[PrintedNumber, ...]] = field(default_factory=dict, hash=False)
    """Name, such as `accuracy` → the numbers that rank 0 printed beside the losses."""


NO_MEASUREMENTS: Final = Measurements()


def measurements_of(
    ranks: Mapping[int, RankWindows],
    hosts: Mapping[str, HostWindows],
    losses: tuple[PrintedNumber, ...],
    series: Mapping[str, tuple[PrintedNumber, ...]] = MappingProxyType({}),
) -> Measurements:
    """Return the measurements of the windows that the run's record has for each rank and for each host."""
    return Measurements(
        {rank: windows_of(record.started, record.seconds, record.windows) for rank, record in ranks.items()},
        {host: host_windows_of(record.started, record.seconds, record.windows) for host, record in hosts.items()},
        losses,
        series,
    )


def windows_of(started: float, seconds: float, rates: Iterable[RankRates | None]) -> tuple[Window, ...]:
    """Return the windows of a rank from its consecutive rates. A rate of None (nothing is known) gives no window.

    `started`: start of the first window. `seconds`: length of each window.
    """
    return tuple(
        Window(
            started + number * seconds,
            seconds,
            rate.steps_per_s * seconds,
            None if rate.samples_per_s is None else rate.samples_per_s * seconds,
            _waited(rate, seconds),
            None if rate.cpu is None else rate.cpu * seconds,
            rate.rss,
        )
        for number, rate in enumerate(rates)
        if rate is not None
    )


def _waited(rate: RankRates, seconds: float) -> float | None:
    """Return the seconds that the rank waited for data and for other ranks; None if neither is measured."""
    if rate.data_wait is None and rate.collective_wait is None:
        return None
    return min(1.0, (rate.data_wait or 0.0) + (rate.collective_wait or 0.0)) * seconds


def host_windows_of(started: float, seconds: float, rates: Iterable[HostRates | None]) -> tuple[HostWindow, ...]:
    """Return the windows of a host from its consecutive rates. A rate of None gives no window. `started` and `seconds`:
    as of `windows_of`."""
    return tuple(
        HostWindow(started + number * seconds, seconds, rate.sent_per_s)
        for number, rate in enumerate(rates)
        if rate is not None
    )


@dataclass(frozen=True, slots=True)
class Columns:
    """Equal pieces of time, from left to right in a drawing."""

    start: float
    """Seconds since the epoch."""
    width: float
    """Seconds per column."""
    count: int

    @property
    def span(self) -> float:
        """Return the seconds of all columns together."""
        return self.width * self.count


@dataclass(frozen=True, slots=True)
class RankRow:
    """A rank's sums and means over the run, and its values in each column; None in a column: nothing is known."""

    rank: int
    host: str
    steps: float
    """Approximate: a window in which steps began or ended counts as if it had steps all the time."""
    samples: float | None
    """None if samples are unknown in a window with steps."""
    mean_wait: float | None
    """Share of the measured time in which the rank waited for data or other ranks; None if not measured."""
    mean_cpu: float | None
    """Share of the measured time in which the rank's training threads were on a processor; None if not measured."""
    most_memory: float | None
    """Bytes; None if not measured."""
    cpu: tuple[float | None, ...]
    """Share of each column's time in which the rank's training threads were on a processor."""
    waits: tuple[float | None, ...]
    """Share of each column's time in which the rank waited."""
    steps_per_s: tuple[float | None, ...]
    samples_per_s: tuple[float | None, ...]
    """Empty if samples are unknown."""
    throughput: Throughput | None = None
    """From the rank's status; None if the status has none."""


@dataclass(frozen=True, slots=True)
class RankGrid:
    """A row for each rank that measured something; ranks of one host are adjacent."""

    columns: Columns
    rows: tuple[RankRow, ...]


@dataclass(frozen=True, slots=True)
class HostCurves:
    """A host's values in each column. Empty curves were not measured."""

    host: str
    columns: Columns
    memory: tuple[float | None, ...] = ()
    """Bytes of all ranks of the host."""
    sent: tuple[float | None, ...] = ()
    """Bytes/s."""


def columns_for(start: float, end: float, window: float, limit: int) -> Columns:
    """Return at most `limit` columns that divide the time, none narrower than `window` seconds."""
    span = max(end - start, window, 1e-3)
    count = max(1, min(limit, int(span / max(window, 1e-3))))
    return Columns(start, span / count, count)


def rank_columns(ranks: int) -> int:
    """Return how many columns a grid with that many ranks may have."""
    return max(_MIN_COLUMNS, min(MAX_COLUMNS, MAX_CELLS // max(1, ranks)))


def host_columns(hosts: int) -> int:
    """Return how many columns the curves of that many hosts may have."""
    return max(20, min(MAX_COLUMNS, MAX_POINTS // (3 * max(1, hosts))))


def rank_grid(
    measured: Measurements,
    hosts: Mapping[int, str],
    start: float,
    end: float,
    figures: Mapping[int, Throughput | None] | None = None,
) -> RankGrid | None:
    """Return the grid of ranks between two times; None if no rank has a step or a measured share of work.

    `hosts`: rank → its host. The rows come in the order in which hosts appear there, the ranks of a host by number.
    `figures`: rank → the throughput in its status.
    """
    known = [(rank, host) for rank, host in hosts.items() if measured.ranks.get(rank)]
    if not known:
        return None
    order = {host: number for number, host in enumerate(dict.fromkeys(hosts.values()))}
    known.sort(key=lambda entry: (order[entry[1]], entry[0]))
    window = max(measured.ranks[known[0][0]][0].seconds, 0.1)
    columns = columns_for(start, end, window, rank_columns(len(known)))
    rows = [_rank_row(rank, host, measured.ranks[rank], columns) for rank, host in known]
    if not any(row.steps or row.mean_cpu is not None for row in rows):
        return None
    return RankGrid(columns, tuple(replace(row, throughput=(figures or {}).get(row.rank)) for row in rows))


def _rank_row(rank: int, host: str, windows: Sequence[Window], columns: Columns) -> RankRow:
    """Return the row of a rank: each window is distributed over the columns in which it lies.

    A rate divides by the seconds for which its figure is known. Steps and samples divide by the seconds of windows
    with steps, unless steps are rare.
    """
    start, width, last = columns.start, columns.width, columns.count - 1
    counts = [window.steps for window in windows if window.steps]
    is_rare = not counts or median(counts) < RARE_STEPS
    seconds, steps, samples = ([0.0] * columns.count for _ in range(3))
    waits, wait_seconds, cpu, cpu_seconds = ([0.0] * columns.count for _ in range(4))
    for begin, length, done, sampled, waited, used, _ in windows:
        if length <= 0:
            continue
        first = max(0, int((begin - start) / width))
        final = min(last, int((begin + length - start) / width))
        for column in range(first, final + 1):
            share = 1.0
            if first != final or begin < start:
                left = start + column * width
                share = (min(begin + length, left + width) - max(begin, left)) / length
                if share <= 0:
                    continue
            part = share * length
            seconds[column] += part if done or sampled or is_rare else 0.0
            steps[column] += share * done
            samples[column] += share * (sampled or 0.0)
            if waited is not None:
                waits[column] += share * waited
                wait_seconds[column] += part
            if used is not None:
                cpu[column] += share * used
                cpu_seconds[column] += part
    has_samples = all(window.samples is not None or not window.steps for window in windows)
    return RankRow(
        rank=rank,
        host=host,
        steps=sum(window.steps for window in windows),
        samples=sum(window.samples or 0.0 for window in windows) if has_samples else None,
        mean_wait=_rate(sum(waits), sum(wait_seconds)),
        mean_cpu=_rate(sum(cpu), sum(cpu_seconds)),
        most_memory=max((window.memory for window in windows if window.memory is not None), default=None),
        cpu=_rates(cpu, cpu_seconds),
        waits=_rates(waits, wait_seconds),
        steps_per_s=_rates(steps, seconds),
        samples_per_s=_rates(samples, seconds) if has_samples else (),
    )


def _rate(amount: float, seconds: float) -> float | None:
    """Return the amount for each second; None if nothing was measured."""
    return amount / seconds if seconds > 0 else None


def _rates(amounts: Sequence[float], seconds: Sequence[float]) -> tuple[float | None, ...]:
    return tuple(map(_rate, amounts, seconds))


def host_curves(measured: Measurements, hosts: Mapping[int, str], start: float, end: float) -> tuple[HostCurves, ...]:
    """Return the curves of each host that has windows, between two times. `hosts`: rank → its host."""
    known = [host for host in dict.fromkeys(hosts.values()) if measured.hosts.get(host)]
    if not known:
        return ()
    window = max(measured.hosts[known[0]][0].seconds, 0.1)
    columns = columns_for(start, end, window, host_columns(len(known)))
    ranks: dict[str, list[Sequence[Window]]] = {host: [] for host in known}
    for rank, host in hosts.items():
        if host in ranks and rank in measured.ranks:
            ranks[host].append(measured.ranks[rank])
    return tuple(_host_curves(host, measured.hosts[host], ranks[host], columns) for host in known)


def _host_curves(
    host: str, windows: Sequence[HostWindow], ranks: Iterable[Sequence[Window]], columns: Columns
) -> HostCurves:
    """Return the curves of a host; its memory is the sum over its ranks. `ranks`: the windows of each of its ranks."""
    memory_of_ranks = []
    for rank_windows in ranks:
        means = _means(((window.start, window.seconds, window.memory) for window in rank_windows), columns)
        if means:
            memory_of_ranks.append(means)
    memory = tuple(
        sum(known) if (known := [value for value in column if value is not None]) else None
        for column in zip(*memory_of_ranks, strict=True)
    )
    return HostCurves(host, columns, memory, _means(windows, columns))


def _means(values: Iterable[tuple[float, float, float | None]], columns: Columns) -> tuple[float | None, ...]:
    """Return the mean value in each column, from the start, the seconds and the value of each window.

    A window without a value is left out. A column without a value is None; without any value, the result is empty.
    """
    weights, sums = [0.0] * columns.count, [0.0] * columns.count
    for begin, length, value in values:
        if value is None or length <= 0:
            continue
        first = max(0, int((begin - columns.start) / columns.width))
        final = min(columns.count - 1, int((begin + length - columns.start) / columns.width))
        for column in range(first, final + 1):
            left = columns.start + column * columns.width
            part = min(begin + length, left + columns.width) - max(begin, left)
            if part > 0:
                weights[column] += part
                sums[column] += part * value
    return _rates(sums, weights) if any(weights) else ()


PhaseKind = Literal[
    "checks", "sync", "start", "checkpoint", "import", "warm-up", "steps", "script", "silent", "restart", "lost", "end"
]
_MAX_BEFORE_START: Final = 7 * 86400.0
_SHORTEST_PHASE: Final = 0.05
_MIN_WARM_WINDOWS: Final = 6
"""Number of windows from which a usual speed is known."""
_WARM_SPEED: Final = 0.9
"""Share of the usual speed at which the warm-up is over."""


@dataclass(frozen=True, slots=True)
class RunPhase:
    """A part of the run's time. Phases follow each other, except that `silent` lies over the end of others."""

    kind: PhaseKind
    begin: float
    """Seconds since the start of the checks."""
    end: float
    """Seconds since the start of the checks. A restart has no duration: its end is its beginning."""
    text: str
    """What happens, for the table."""


def before_start(before: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of `checks` and `sync` from a plan; a time that cannot be right (0, weeks) is left out."""
    times = {name: before.get(name, 0.0) for name in ("checks", "sync")}
    return {name: seconds for name, seconds in times.items() if 0.0 < seconds < _MAX_BEFORE_START}


def find_phases(
    snapshot: RunSnapshot, measured: Measurements, before: Mapping[str, float], start: float, end: float
) -> Iterator[RunPhase]:
    """Yield the phases of a run: checks and sync, then the phases of each attempt, with a restart between attempts.

    `before`: seconds of `checks` and `sync`, from `before_start`. `start`: time when the checks began. `end`: time
    when the run ended, or now. Phases shorter than `_SHORTEST_PHASE` are left out.
    """
    checked = before.get("checks", 0.0)
    origin = start + sum(before.values())
    if checked:
        yield RunPhase("checks", 0.0, checked, "hosts, environment and connections are checked")
    if "sync" in before:
        yield RunPhase("sync", checked, origin - start, "the project is uploaded")
    ends = [attempt.ended for attempt in snapshot.status.attempts if attempt.ended is not None]
    borders = [origin, *sorted(min(max(at, origin), end) for at in ends), end]
    failures = [attempt.first_failure for attempt in snapshot.status.all_attempts]
    for number, (attempt_begin, attempt_end) in enumerate(pairwise(borders)):
        if number:
            reason = snapshot.restarts[number - 1] if number <= len(snapshot.restarts) else ""
            text = f"restart {number}{f': {reason}' if reason else ''}"
            yield RunPhase("restart", attempt_begin - start, attempt_begin - start, text)
        first_failure = failures[number] if number < len(failures) else None
        marks = list(_phase_marks(snapshot, measured, first_failure, attempt_begin, attempt_end))
        if not snapshot.status.is_over and attempt_end == end:  # the steps go on
            marks = [mark for mark in marks if mark[1] != "end"]
        marks.append((attempt_end, "end", ""))
        for (at, kind, text), (until, _, _) in pairwise(marks):
            if until - at >= _SHORTEST_PHASE:
                yield RunPhase(kind, at - start, until - start, text)
    silent = snapshot.status.silent
    if silent is not None and origin <= silent.since < end:
        yield RunPhase("silent", silent.since - start, end - start, "no rank printed anything")


_Mark = tuple[float, PhaseKind, str]
"""Time at which a phase begins, its kind and its text. A phase lasts to the next mark."""


def _phase_marks(
    snapshot: RunSnapshot, measured: Measurements, first_failure: Failure | None, begin: float, end: float
) -> Iterator[_Mark]:
    """Yield the marks of one attempt, from its beginning to its end.

    An attempt without a measured step has one phase, `script`, after the start of its ranks.
    """
    scripts_begin = next((at for at in _event_times(snapshot, "start") if begin <= at <= end), None)
    at = begin
    if scripts_begin is not None:
        yield begin, "start", "the ranks are started"
        exchange_begin = _exchange_begin(snapshot, begin, scripts_begin)
        if exchange_begin is not None:
            yield exchange_begin, "checkpoint", "all hosts get the checkpoint"
        at = scripts_begin
    steps = _steps_between(measured, begin, end)
    if steps is None:
        yield at, "script", "the script runs"
        return
    first_step = min(end, max(at, steps[0]))
    last_step = max(first_step, min(end, steps[1]))
    warm = min(last_step, max(first_step, _warm_from(measured, first_step, last_step)))
    yield at, "import", "imports, data and the first step"
    yield first_step, "warm-up", "steps below 90 % of the usual speed"
    yield warm, "steps", "steps"
    if first_failure is not None and first_failure.kind == "lost":
        yield last_step, "lost", f"ranks wait for {first_failure.host or 'the other hosts'}, which was lost"
        last_step = next((at for at in _event_times(snapshot, "ending") if last_step <= at <= end), end)
    yield last_step, "end", "after the last step"


def _exchange_begin(snapshot: RunSnapshot, begin: float, scripts_begin: float) -> float | None:
    """Return when the last rank was connected, because the exchange of checkpoints begins then.

    None if the attempt exchanged no checkpoint before its scripts began.
    """
    if not any(begin <= at <= scripts_begin for at in _event_times(snapshot, "checkpoint")):
        return None
    return max((at for at in _event_times(snapshot, "connected") if begin <= at <= scripts_begin), default=None)


def _event_times(snapshot: RunSnapshot, name: str) -> Sequence[float]:
    """Return the times of all events with this name, the earliest first."""
    times = (as_number(event.get("at")) for event in snapshot.events if event.get("event") == name)
    return sorted(at for at in times if at is not None)


def _steps_between(measured: Measurements, begin: float, end: float) -> tuple[float, float] | None:
    """Return the begin of the first window with steps and the end of the last one; None if no window has steps.

    Only windows that begin between the two times count.
    """
    firsts, lasts = [], []
    for windows in measured.ranks.values():
        low = bisect_left(windows, begin, key=_start_of)
        high = bisect_left(windows, end, key=_start_of)
        first = next((window for window in islice(windows, low, high) if window.steps), None)
        last = next((windows[index] for index in range(high - 1, low - 1, -1) if windows[index].steps), None)
        if first is not None and last is not None:
            firsts.append(first.start)
            lasts.append(last.start + last.seconds)
    return (min(firsts), max(lasts)) if firsts else None


def _warm_from(measured: Measurements, begin: float, end: float) -> float:
    """Return when the first measured rank reaches the usual speed.

    `begin` if it has fewer than `_MIN_WARM_WINDOWS` windows between the two times: then no speed is usual.
    """
    windows = measured.ranks[min(measured.ranks)]
    low, high = bisect_left(windows, begin, key=_start_of), bisect_left(windows, end, key=_start_of)
    inside = [window for window in windows[low:high] if window.seconds > 0]
    if len(inside) < _MIN_WARM_WINDOWS:
        return begin
    usual = statistics.median(window.steps / window.seconds for window in inside)
    warm = (window.start for window in inside if window.steps / window.seconds >= _WARM_SPEED * usual)
    return next(warm, begin)


def _start_of(window: Window) -> float:
    return window.start
