"""The measurements of a run, and their reduction to the columns of a drawing. Pure.

In: for each rank the windows of its step meter, for each host the windows of its figures, each of about 10 s. Out: a
`RankGrid` (rank x column) and `HostCurves`, with so few columns that a page stays small however long the run was. The
rules: a window counts in each column by the part of it that lies there, so that no column is empty between two windows
and a rate is seconds-weighted; a column without a window has no value, which is another thing than zero; a window
without a step, as between two attempts, counts in no rate of steps, unless steps are as rare as that; what a record
lacks is None. This module is the one place that knows how windows arrive: `NO_MEASUREMENTS` is a run without any.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ipexctl.extras.slow.timeline import RARE_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ipexctl.node.common.records import Throughput
    from ipexctl.node.run.rates import HostRates, RankRates
    from ipexctl.node.run.window_file import HostWindows, RankWindows

MAX_COLUMNS: Final = 400
MAX_CELLS: Final = 120_000
"""Of all ranks: with more ranks, a rank has fewer columns."""
MAX_POINTS: Final = 24_000
"""Of all curves of all hosts."""
_MIN_COLUMNS: Final = 60


class Window(NamedTuple):
    """What one rank did in a few seconds."""

    start: float
    """Seconds since the epoch, by the clock of node0."""
    seconds: float
    steps: float
    samples: float | None = None
    """None where they cannot be known."""
    waited: float | None = None
    """Seconds spent waiting for data, or for other ranks in the shared all-reduce; None where neither is measured."""
    cpu: float | None = None
    """Seconds of CPU time."""
    memory: float | None = None
    """Bytes of the rank's processes."""


class HostWindow(NamedTuple):
    """What was noted about one host in a few seconds."""

    start: float
    seconds: float
    rates: HostRates


@dataclass(frozen=True, slots=True)
class Measurements:
    """All windows of a run. The windows of a rank or host are in the order of their time."""

    ranks: Mapping[int, Sequence[Window]] = field(default_factory=dict, hash=False)
    hosts: Mapping[str, Sequence[HostWindow]] = field(default_factory=dict, hash=False)
    losses: tuple[tuple[float, float], ...] = ()
    """Time and value, as a rank printed them."""
    is_metric: bool = False
    """The samples are values that a rank printed, of the whole run: they are not summed over the ranks."""


NO_MEASUREMENTS: Final = Measurements()


def measurements_of(
    ranks: Mapping[int, RankWindows], hosts: Mapping[str, HostWindows], losses: tuple[tuple[float, float], ...]
) -> Measurements:
    """From the windows of the record."""
    by_metric = any(rates is not None and rates.by_metric for record in ranks.values() for rates in record.windows)
    return Measurements(
        {rank: windows_of(record.started, record.seconds, record.windows) for rank, record in ranks.items()},
        {host: host_windows_of(record.started, record.seconds, record.windows) for host, record in hosts.items()},
        losses,
        is_metric=by_metric,
    )


def windows_of(started: float, seconds: float, rates: Iterable[RankRates | None]) -> tuple[Window, ...]:
    """The windows of a rank, which follow one another without a gap; None: nothing is known of that one."""
    return tuple(
        Window(
            started + number * seconds,
            seconds,
            rate.steps_per_s * seconds,
            None if rate.samples_per_s is None else rate.samples_per_s * seconds,
            _waited(rate, seconds),
            None if rate.cores is None else rate.cores * seconds,
            rate.rss,
        )
        for number, rate in enumerate(rates)
        if rate is not None
    )


def _waited(rate: RankRates, seconds: float) -> float | None:
    if rate.data_wait is None and rate.reduce_wait is None:
        return None
    return min(1.0, (rate.data_wait or 0.0) + (rate.reduce_wait or 0.0)) * seconds


def host_windows_of(started: float, seconds: float, rates: Iterable[HostRates | None]) -> tuple[HostWindow, ...]:
    """The same for a host."""
    return tuple(
        HostWindow(started + number * seconds, seconds, rate) for number, rate in enumerate(rates) if rate is not None
    )


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of all drawings over time."""

    start: float
    width: float
    """Seconds."""
    count: int

    @property
    def span(self) -> float:
        return self.width * self.count


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank: totals, and a value for each column."""

    rank: int
    host: str
    steps: float
    """About as many: a window in which steps began or ended counts as if it had them all the time."""
    samples: float | None
    mean_wait: float | None
    """Share of the time spent waiting, where it is known."""
    mean_cores: float | None
    most_memory: float | None
    """Bytes."""
    cores: tuple[float | None, ...]
    """Cores in use."""
    waits: tuple[float | None, ...]
    """Share of the time spent waiting."""
    steps_per_s: tuple[float | None, ...]
    samples_per_s: tuple[float | None, ...]
    """Empty if samples are not known."""
    throughput: Throughput | None = None
    """As its status has it."""


@dataclass(frozen=True, slots=True)
class RankGrid:
    """All ranks that were measured, those of a host together."""

    columns: Columns
    rows: tuple[RankRow, ...]


SignKind = Literal[
    "cpu_pressure", "memory_pressure", "io_pressure", "steal", "throttled", "swap_per_s", "retransmits_per_s"
]
SIGNS: Final[Mapping[SignKind, float]] = {
    "memory_pressure": 0.05,
    "swap_per_s": 1e6,
    "steal": 0.05,
    "throttled": 0.05,
    "io_pressure": 0.2,
    "cpu_pressure": 0.3,
    "retransmits_per_s": 10.0,
}
"""What slows a host down, and the mean over the run from which the page names it."""


class HostSign(NamedTuple):
    kind: SignKind
    mean: float


@dataclass(frozen=True, slots=True)
class HostCurves:
    """The curves of one host; an empty one was not measured."""

    host: str
    columns: Columns
    cpu: tuple[float | None, ...] = ()
    """The part of all processors in use."""
    memory: tuple[float | None, ...] = ()
    rank_memory: tuple[float | None, ...] = ()
    """The sum of the host's ranks."""
    network: tuple[float | None, ...] = ()
    """Bytes a second, received and sent."""
    signs: tuple[HostSign, ...] = ()


def columns_for(start: float, end: float, window: float, limit: int) -> Columns:
    """At most `limit` columns, none narrower than a window."""
    span = max(end - start, window, 1e-3)
    count = max(1, min(limit, int(span / max(window, 1e-3))))
    return Columns(start, span / count, count)


def rank_columns(ranks: int) -> int:
    """How many columns each of so many ranks may have."""
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
    """None if no rank was measured. `hosts`: the host of each rank, in the order of the hosts."""
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
        mean_cores=_rate(sum(cpu), sum(cpu_seconds)),
        most_memory=max((window.memory for window in windows if window.memory is not None), default=None),
        cores=_rates(cpu, cpu_seconds),
        waits=_rates(waits, wait_seconds),
        steps_per_s=_rates(steps, seconds),
        samples_per_s=_rates(samples, seconds) if has_samples else (),
    )


def _rate(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def _rates(amounts: Sequence[float], seconds: Sequence[float]) -> tuple[float | None, ...]:
    return tuple(map(_rate, amounts, seconds))


def host_curves(measured: Measurements, hosts: Mapping[int, str], start: float, end: float) -> tuple[HostCurves, ...]:
    """The curves of each host that was measured, in the order of `hosts`, which has the host of each rank."""
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
    cpu = _means(((w.start, w.seconds, w.rates.busy) for w in windows), columns)
    memory = _means(((w.start, w.seconds, w.rates.memory_used) for w in windows), columns)
    rates = ((w.start, w.seconds, _network_rate(w.rates)) for w in windows)
    own = [found for each in ranks if (found := _means(((w.start, w.seconds, w.memory) for w in each), columns))]
    rank_memory = tuple(
        sum(known) if (known := [value for value in column if value is not None]) else None
        for column in zip(*own, strict=True)
    )
    return HostCurves(host, columns, cpu, memory, rank_memory, _means(rates, columns), tuple(_signs(windows)))


def _signs(windows: Sequence[HostWindow]) -> Iterator[HostSign]:
    for kind, least in SIGNS.items():
        known = [value for window in windows if (value := getattr(window.rates, kind)) is not None]
        if known and (mean := sum(known) / len(known)) >= least:
            yield HostSign(kind, mean)


def _network_rate(rates: HostRates) -> float | None:
    if rates.received_per_s is None or rates.sent_per_s is None:
        return None
    return rates.received_per_s + rates.sent_per_s


def _means(values: Iterable[tuple[float, float, float | None]], columns: Columns) -> tuple[float | None, ...]:
    """The mean of a value in each column, weighted by time; empty if it was never known."""
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
