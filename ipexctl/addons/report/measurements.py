"""A run's measurements, reduced to few columns, so that a page stays small. Pure. Windows are about 10 s long; a window
counts in each column by the part that lies there. A window without a step, as between attempts, counts in no step rate
unless steps are rare.
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
"""Limit on the cells of all ranks together: more ranks get fewer columns each."""
MAX_POINTS: Final = 24_000
"""Limit on the points of all hosts' curves together."""
_MIN_COLUMNS: Final = 60


class Window(NamedTuple):
    start: float
    """Seconds since the epoch, by node0's clock."""
    seconds: float
    steps: float
    samples: float | None = None
    waited: float | None = None
    """Seconds of waiting for data or other ranks; None if neither is measured."""
    cpu: float | None = None
    """CPU seconds of the stepping threads."""
    memory: float | None = None
    """Memory of the rank's processes, in bytes."""


class HostWindow(NamedTuple):
    start: float
    seconds: float
    sent: float | None
    """Bytes/s."""


@dataclass(frozen=True, slots=True)
class Measurements:
    ranks: Mapping[int, Sequence[Window]] = field(default_factory=dict, hash=False)
    hosts: Mapping[str, Sequence[HostWindow]] = field(default_factory=dict, hash=False)
    losses: tuple[PrintedNumber, ...] = ()
    series: Mapping[str, tuple[PrintedNumber, ...]] = field(default_factory=dict, hash=False)


NO_MEASUREMENTS: Final = Measurements()


def measurements_of(
    ranks: Mapping[int, RankWindows],
    hosts: Mapping[str, HostWindows],
    losses: tuple[PrintedNumber, ...],
    series: Mapping[str, tuple[PrintedNumber, ...]] = MappingProxyType({}),
) -> Measurements:
    return Measurements(
        {rank: windows_of(record.started, record.seconds, record.windows) for rank, record in ranks.items()},
        {host: host_windows_of(record.started, record.seconds, record.windows) for host, record in hosts.items()},
        losses,
        series,
    )


def windows_of(started: float, seconds: float, rates: Iterable[RankRates | None]) -> tuple[Window, ...]:
    """A rank's consecutive windows; a rate of None means that nothing is known of that window."""
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
    if rate.data_wait is None and rate.collective_wait is None:
        return None
    return min(1.0, (rate.data_wait or 0.0) + (rate.collective_wait or 0.0)) * seconds


def host_windows_of(started: float, seconds: float, rates: Iterable[HostRates | None]) -> tuple[HostWindow, ...]:
    return tuple(
        HostWindow(started + number * seconds, seconds, rate.sent_per_s)
        for number, rate in enumerate(rates)
        if rate is not None
    )


@dataclass(frozen=True, slots=True)
class Columns:
    start: float
    width: float
    """Seconds per column."""
    count: int

    @property
    def span(self) -> float:
        return self.width * self.count


@dataclass(frozen=True, slots=True)
class RankRow:
    rank: int
    host: str
    steps: float
    """Approximate: a window in which steps began or ended counts as if it had steps all the time."""
    samples: float | None
    mean_wait: float | None
    mean_cpu: float | None
    most_memory: float | None
    """Bytes."""
    cpu: tuple[float | None, ...]
    """Share of time that the rank's thread was on a processor."""
    waits: tuple[float | None, ...]
    """Share of time spent waiting."""
    steps_per_s: tuple[float | None, ...]
    samples_per_s: tuple[float | None, ...]
    """Empty if samples are unknown."""
    throughput: Throughput | None = None
    """From the rank's status."""


@dataclass(frozen=True, slots=True)
class RankGrid:
    columns: Columns
    rows: tuple[RankRow, ...]


@dataclass(frozen=True, slots=True)
class HostCurves:
    """Empty curves were not measured."""

    host: str
    columns: Columns
    memory: tuple[float | None, ...] = ()
    sent: tuple[float | None, ...] = ()
    """Bytes/s."""


def columns_for(start: float, end: float, window: float, limit: int) -> Columns:
    """Divide the time into at most `limit` columns, none narrower than a window."""
    span = max(end - start, window, 1e-3)
    count = max(1, min(limit, int(span / max(window, 1e-3))))
    return Columns(start, span / count, count)


def rank_columns(ranks: int) -> int:
    return max(_MIN_COLUMNS, min(MAX_COLUMNS, MAX_CELLS // max(1, ranks)))


def host_columns(hosts: int) -> int:
    return max(20, min(MAX_COLUMNS, MAX_POINTS // (3 * max(1, hosts))))


def rank_grid(
    measured: Measurements,
    hosts: Mapping[int, str],
    start: float,
    end: float,
    figures: Mapping[int, Throughput | None] | None = None,
) -> RankGrid | None:
    """The grid; None if nothing was measured. `hosts`: each rank's host, in host order."""
    known = [(rank, host) for rank, host in hosts.items() if measured.ranks.get(rank)]
    if not known:
        return None
    order = {host: place for place, host in reversed(list(enumerate(hosts.values())))}
    known.sort(key=lambda entry: (order[entry[1]], entry[0]))
    window = max(measured.ranks[known[0][0]][0].seconds, 0.1)
    columns = columns_for(start, end, window, rank_columns(len(known)))
    rows = [_rank_row(rank, host, measured.ranks[rank], columns) for rank, host in known]
    if not any(row.steps or row.mean_cpu is not None for row in rows):
        return None
    return RankGrid(columns, tuple(replace(row, throughput=(figures or {}).get(row.rank)) for row in rows))


def _rank_row(rank: int, host: str, windows: Sequence[Window], columns: Columns) -> RankRow:
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
    return amount / seconds if seconds > 0 else None


def _rates(amounts: Sequence[float], seconds: Sequence[float]) -> tuple[float | None, ...]:
    return tuple(map(_rate, amounts, seconds))


def host_curves(measured: Measurements, hosts: Mapping[int, str], start: float, end: float) -> tuple[HostCurves, ...]:
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
    own = [found for each in ranks if (found := _means(((w.start, w.seconds, w.memory) for w in each), columns))]
    memory = tuple(
        sum(known) if (known := [value for value in column if value is not None]) else None
        for column in zip(*own, strict=True)
    )
    return HostCurves(host, columns, memory, _means(windows, columns))


def _means(values: Iterable[tuple[float, float, float | None]], columns: Columns) -> tuple[float | None, ...]:
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
_MAX_BEFORE: Final = 7 * 86400.0
_SHORTEST: Final = 0.05
_MIN_WARM: Final = 6
"""Number of windows from which a usual speed is known."""
_WARM: Final = 0.9
"""Share of the usual speed at which the warm-up is over."""


@dataclass(frozen=True, slots=True)
class RunPhase:
    kind: PhaseKind
    begin: float
    """Seconds since the start."""
    end: float
    text: str


def before_start(before: Mapping[str, float]) -> dict[str, float]:
    found = {name: before.get(name, 0.0) for name in ("checks", "sync")}
    return {name: seconds for name, seconds in found.items() if 0.0 < seconds < _MAX_BEFORE}


def find_phases(
    snapshot: RunSnapshot, measured: Measurements, before: Mapping[str, float], start: float, end: float
) -> Iterator[RunPhase]:
    """`start`: when the checks began. `end`: when the run ended, or now."""
    checked = before.get("checks", 0.0)
    origin = start + sum(before.values())
    if checked:
        yield RunPhase("checks", 0.0, checked, "hosts, environment and connections are checked")
    if "sync" in before:
        yield RunPhase("sync", checked, origin - start, "the project is uploaded")
    ends = [attempt.ended for attempt in snapshot.status.attempts if attempt.ended is not None]
    borders = [origin, *sorted(min(max(at, origin), end) for at in ends), end]
    failures = [attempt.first_failure for attempt in snapshot.status.all_attempts]
    for number, (begin, over) in enumerate(pairwise(borders)):
        if number:
            reason = snapshot.restarts[number - 1] if number <= len(snapshot.restarts) else ""
            text = f"restart {number}{f': {reason}' if reason else ''}"
            yield RunPhase("restart", begin - start, begin - start, text)
        first = failures[number] if number < len(failures) else None
        marks = list(_attempt(snapshot, measured, first, begin, over))
        if not snapshot.status.is_over and over == end:  # the steps go on
            marks = [mark for mark in marks if mark[1] != "end"]
        marks.append((over, "end", ""))
        for (at, kind, text), (until, _, _) in pairwise(marks):
            if until - at >= _SHORTEST:
                yield RunPhase(kind, at - start, until - start, text)
    silent = snapshot.status.silent
    if silent is not None and origin <= silent.since < end:
        yield RunPhase("silent", silent.since - start, end - start, "no rank printed anything")


_Mark = tuple[float, PhaseKind, str]


def _attempt(
    snapshot: RunSnapshot, measured: Measurements, first_failure: Failure | None, begin: float, over: float
) -> Iterator[_Mark]:
    begun = next((at for at in _times_of(snapshot, "start") if begin <= at <= over), None)
    at = begin
    if begun is not None:
        yield begin, "start", "the ranks are started"
        exchanged = _exchange(snapshot, begin, begun)
        if exchanged is not None:
            yield exchanged, "checkpoint", "all hosts get the checkpoint"
        at = begun
    steps = _steps_between(measured, begin, over)
    if steps is None:
        yield at, "script", "the script runs"
        return
    first = min(over, max(at, steps[0]))
    last = max(first, min(over, steps[1]))
    warm = min(last, max(first, _warm_from(measured, first, last)))
    yield at, "import", "imports, data and the first step"
    yield first, "warm-up", "steps below 90 % of the usual speed"
    yield warm, "steps", "steps"
    if first_failure is not None and first_failure.kind == "lost":
        yield last, "lost", f"ranks wait for {first_failure.host or 'the other hosts'}, which was lost"
        last = next((at for at in _times_of(snapshot, "ending") if last <= at <= over), over)
    yield last, "end", "after the last step"


def _exchange(snapshot: RunSnapshot, begin: float, begun: float) -> float | None:
    """When the checkpoint exchange began, because all ranks were connected."""
    if not any(begin <= at <= begun for at in _times_of(snapshot, "checkpoint")):
        return None
    return max((at for at in _times_of(snapshot, "connected") if begin <= at <= begun), default=None)


def _times_of(snapshot: RunSnapshot, name: str) -> Sequence[float]:
    found = (as_number(event.get("at")) for event in snapshot.events if event.get("event") == name)
    return sorted(at for at in found if at is not None)


def _steps_between(measured: Measurements, begin: float, end: float) -> tuple[float, float] | None:
    """Time span of all windows with steps; None without any."""
    firsts, lasts = [], []
    for windows in measured.ranks.values():
        low = bisect_left(windows, begin, key=_start_of)
        high = bisect_left(windows, end, key=_start_of)
        first = next((window for window in islice(windows, low, high) if window.steps), None)
        last = next((windows[at] for at in range(high - 1, low - 1, -1) if windows[at].steps), None)
        if first is not None and last is not None:
            firsts.append(first.start)
            lasts.append(last.start + last.seconds)
    return (min(firsts), max(lasts)) if firsts else None


def _warm_from(measured: Measurements, begin: float, end: float) -> float:
    """When the slowest measured rank reaches the usual speed; `begin` if there are too few windows."""
    windows = measured.ranks[min(measured.ranks)]
    low, high = bisect_left(windows, begin, key=_start_of), bisect_left(windows, end, key=_start_of)
    inside = [window for window in windows[low:high] if window.seconds > 0]
    if len(inside) < _MIN_WARM:
        return begin
    usual = statistics.median(window.steps / window.seconds for window in inside)
    warm = (window.start for window in inside if window.steps / window.seconds >= _WARM * usual)
    return next(warm, begin)


def _start_of(window: Window) -> float:
    return window.start
