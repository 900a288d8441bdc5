"""A run's measurements, reduced to the columns of a drawing, so few that a page stays small. Pure.

Windows are about 10 s long. A window counts in each column by its part there. A column without a window has no value,
not zero. A window without a step, as between attempts, counts in no step rate unless steps are that rare. Only this
module knows how windows arrive; `NO_MEASUREMENTS` is a run without any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final, NamedTuple

from ipexctl.extras.slow.timeline import RARE_STEPS
from ipexctl.node.common.records import Throughput
from ipexctl.node.run.rates import HostRates, RankRates
from ipexctl.node.run.window_file import HostWindows, RankWindows

MAX_COLUMNS: Final = 400
MAX_CELLS: Final = 120_000
"""Of all ranks: more ranks get fewer columns each."""
MAX_POINTS: Final = 24_000
"""Of all curves of all hosts."""
_MIN_COLUMNS: Final = 60


class Window(NamedTuple):
    start: float
    """Seconds since the epoch, by node0's clock."""
    seconds: float
    steps: float
    samples: float | None = None
    """None if unknown."""
    waited: float | None = None
    """Seconds waiting for data or other ranks; None if neither is measured."""
    cpu: float | None = None
    """Seconds of the stepping threads."""
    memory: float | None = None
    """Bytes of the rank's processes."""


class HostWindow(NamedTuple):
    start: float
    seconds: float
    sent: float | None
    """Bytes/s."""


@dataclass(frozen=True, slots=True)
class Measurements:
    ranks: Mapping[int, Sequence[Window]] = field(default_factory=dict, hash=False)
    hosts: Mapping[str, Sequence[HostWindow]] = field(default_factory=dict, hash=False)
    losses: tuple[tuple[float, float], ...] = ()
    is_metric: bool = False
    """Samples come from values a rank printed for the run, so they are not summed over ranks."""


NO_MEASUREMENTS: Final = Measurements()


def measurements_of(
    ranks: Mapping[int, RankWindows], hosts: Mapping[str, HostWindows], losses: tuple[tuple[float, float], ...]
) -> Measurements:
    by_metric = any(rates is not None and rates.by_metric for record in ranks.values() for rates in record.windows)
    return Measurements(
        {rank: windows_of(record.started, record.seconds, record.windows) for rank, record in ranks.items()},
        {host: host_windows_of(record.started, record.seconds, record.windows) for host, record in hosts.items()},
        losses,
        is_metric=by_metric,
    )


def windows_of(started: float, seconds: float, rates: Iterable[RankRates | None]) -> tuple[Window, ...]:
    """A rank's consecutive windows; None: nothing known for that one."""
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
    """Seconds."""
    count: int

    @property
    def span(self) -> float:
        return self.width * self.count


@dataclass(frozen=True, slots=True)
class RankRow:
    rank: int
    host: str
    steps: float
    """Approximate: a window where steps began or ended counts as if it had them all the time."""
    samples: float | None
    mean_wait: float | None
    mean_cpu: float | None
    most_memory: float | None
    """Bytes."""
    cpu: tuple[float | None, ...]
    """Share of time its thread was on a processor."""
    waits: tuple[float | None, ...]
    """Share of time spent waiting."""
    steps_per_s: tuple[float | None, ...]
    samples_per_s: tuple[float | None, ...]
    """Empty if samples are unknown."""
    throughput: Throughput | None = None
    """From its status."""


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
    """At most `limit` columns, none narrower than a window."""
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
    """None if no rank was measured. `hosts`: host of each rank, in host order."""
    known = [(rank, host) for rank, host in hosts.items() if measured.ranks.get(rank)]
    if not known:
        return None
    order = {host: place for place, host in reversed(list(enumerate(hosts.values())))}
    known.sort(key=lambda entry: (order[entry[1]], entry[0]))
    window = max(measured.ranks[known[0][0]][0].seconds, 0.1)
    columns = columns_for(start, end, window, rank_columns(len(known)))
    rows = (_rank_row(rank, host, measured.ranks[rank], columns) for rank, host in known)
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
    """Curves of each measured host; `hosts`: host of each rank, in order."""
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
