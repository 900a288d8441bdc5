"""Judges which ranks of a run are slow, since when, why, and what it costs; and its network apart from that. Pure.

In: the windows of a run, what its plan says of its ranks (`RunSetup`), and what was seen on the hosts of suspects. Out:
a `SlowVerdict`. The rules: a rank is slow if its own time is at least MORE_OWN of a step above the median of the other
ranks, in ROW judged windows in a row, which have at least 30 steps each; two ranks are enough for that, as the one that
waits is not the slow one. Windows in which it is slow for the same cause are one finding. What cannot be known has a
reason and is not guessed: `unjudged` says why there is no answer, `blind` what was not seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean, median, median_low
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from ipexctl.extras.slow.causes import Evidence, SlowCause, find_cause
from ipexctl.extras.slow.network import LinkFinding, judge_network, lasts, stretches
from ipexctl.extras.slow.timeline import judged_rows
from ipexctl.node.common.medians import medians_of_others
from ipexctl.node.run.own_time import MORE_OWN, ROW, OwnTime, own_time, waiting_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from ipexctl.extras.slow.timeline import JudgedWindow
    from ipexctl.node.common.records import NetworkCost
    from ipexctl.node.run.own_time import Waiting
    from ipexctl.node.run.rates import HostRates, RankRates
    from ipexctl.node.run.replies import SuspectLook
    from ipexctl.run.windows import RunWindows

ALL_WAIT: Final = 0.1
"""Of a step: the wait for data from which all ranks wait for it, if half of them do."""
MORE_PRESSURE: Final = 0.3
"""By which the pressure on the processors of a host is above that of the others, if it is crowded."""
TOGETHER: Final = 0.2
"""By which the steps of ranks in a window may differ, in parts of the median, if they step together."""
LIMITED: Final = 0.5
"""Of the periods of a cgroup's limit, from which half of MORE_OWN is enough: something slows the rank for certain."""
Unjudged = Literal[
    "", "older-version", "no-windows", "too-short", "no-own-time", "independent", "not-together", "one-rank"
]


@dataclass(frozen=True, slots=True)
class RunSetup:
    """What must be known of a run to judge its windows."""

    hosts: Mapping[int, str] = field(hash=False)
    """The host of each rank."""
    waiting: Waiting = "sleeps"
    network: NetworkCost | None = None
    """As the supervisor has watched it."""


@dataclass(frozen=True, slots=True)
class SlowFinding:
    """A slow rank; or, with `rank` None, all ranks together."""

    rank: int | None
    host: str
    percent: float
    """Own time above the usual, in percent of a step."""
    cost_percent: float
    """By which the steps would take less time without it, at most."""
    cost_seconds: float
    """The same, of the windows in which it was slow."""
    cause: SlowCause
    evidence: Evidence
    start: float
    end: float
    windows: int
    is_current: bool
    """Whether the rank is slow in one of the last two windows."""


@dataclass(frozen=True, slots=True)
class CrowdedHost:
    """A host on which processes wait for a processor more than on the others, and no rank of it is slow by own time.

    The thread that steps sleeps while it waits for an OpenMP thread of its rank: that such a thread had to wait for its
    processor is in no own time.
    """

    host: str
    pressure: float
    """The part of the time in which some process waited for a processor, in the last windows."""
    usual: float
    """The median of the other hosts."""


@dataclass(frozen=True, slots=True)
class SlowVerdict:
    findings: tuple[SlowFinding, ...] = ()
    """The one that costs most first; those that last before those that are over."""
    links: tuple[LinkFinding, ...] = ()
    crowded: tuple[CrowdedHost, ...] = ()
    windows: int = 0
    """That were judged."""
    seconds: float = 0.0
    """Of these windows."""
    waiting: Waiting = "sleeps"
    unjudged: Unjudged = ""
    network: NetworkCost | None = None
    """What transfers between hosts cost; known where no rank is compared, too."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """A window with the own time of each rank."""

    window: JudgedWindow
    own: Mapping[int, OwnTime] = field(hash=False)
    more: Mapping[int, float] = field(hash=False)
    """Rank → own time above the median of the others."""


def judge(windows: RunWindows, setup: RunSetup, looks: Mapping[int, SuspectLook] | None = None) -> SlowVerdict:
    """Judge a run; `looks` are of this moment, so they count for ranks that are slow now."""
    hosts = {setup.hosts[rank]: found for rank, found in windows.hosts.items() if rank in setup.hosts}
    rows = judged_rows(windows.ranks, hosts)
    flat = [window for row in rows for window in row]
    seconds = sum(window.seconds for window in flat)
    verdict = SlowVerdict(windows=len(flat), seconds=seconds, waiting=setup.waiting, network=setup.network)
    if not flat:
        return replace(verdict, unjudged=_without_windows(windows))
    judged = [[_judged(window, setup.waiting) for window in row] for row in rows]
    links = tuple(judge_network(rows, setup.waiting))
    waits = list(_all_wait(judged))
    unjudged = _unjudged(judged, setup)
    slow = [] if unjudged else list(_slow_ranks(judged, setup, looks or {}))
    findings = sorted([*slow, *waits], key=lambda found: (not found.is_current, -found.cost_seconds))
    crowded = tuple(_crowded(rows[-1], {found.host for found in slow if found.is_current}))
    return replace(verdict, findings=tuple(findings), links=links, crowded=crowded, unjudged=unjudged)


def _crowded(row: Sequence[JudgedWindow], slow: Collection[str]) -> Iterator[CrowdedHost]:
    if len(row) < ROW:
        return
    values: dict[str, list[float]] = {}
    for window in row[-ROW:]:
        for host, rates in window.hosts.items():
            if rates.cpu_pressure is not None:
                values.setdefault(host, []).append(rates.cpu_pressure)
    pressures = {host: fmean(found) for host, found in values.items() if len(found) == ROW}
    for host, usual in medians_of_others(pressures).items():
        if host not in slow and pressures[host] - usual >= MORE_PRESSURE:
            yield CrowdedHost(host, pressures[host], usual)


def _without_windows(windows: RunWindows) -> Unjudged:
    if windows.are_older:
        return "older-version"
    steps = [any(rates is not None and rates.steps_per_s > 0 for rates in r.windows) for r in windows.ranks.values()]
    return "no-windows" if not any(steps) else "too-short" if all(steps) else "not-together"


def _unjudged(rows: Sequence[Sequence[_Judged]], setup: RunSetup) -> Unjudged:
    flat = [judged for row in rows for judged in row]
    if setup.waiting == "independent":
        return "independent"
    if len(setup.hosts) < 2:
        return "one-rank"
    if max(map(len, rows)) < ROW:
        return "too-short"
    if not any(judged.more for judged in flat):
        return "no-own-time"
    together = sum(_steps_together(judged.window) for judged in flat)
    return "" if 2 * together > len(flat) else "not-together"


def _steps_together(window: JudgedWindow) -> bool:
    steps = [rates.steps_per_s for rates in window.ranks.values()]
    usual = median(steps)
    return usual > 0 and all(abs(each - usual) <= TOGETHER * usual for each in steps)


def _judged(window: JudgedWindow, waiting: Waiting) -> _Judged:
    waiting = waiting_in(window.ranks.values(), waiting)
    own = {rank: own_time(rates, waiting) for rank, rates in window.ranks.items()}
    totals = {rank: time.total for rank, time in own.items() if time.total is not None}
    usual = medians_of_others(totals)
    return _Judged(window, own, {rank: totals[rank] - usual[rank] for rank in usual})


def _slow_ranks(
    rows: Sequence[Sequence[_Judged]], setup: RunSetup, looks: Mapping[int, SuspectLook]
) -> Iterator[SlowFinding]:
    slow: dict[int, list[list[_Judged]]] = {}
    for rank in setup.hosts:
        found = list(stretches(rows, partial(_is_slow, rank, setup.hosts[rank])))
        if found:
            slow[rank] = found
    slow_in: dict[int, set[int]] = {}
    for rank, found in slow.items():
        for judged in (judged for stretch in found for judged in stretch):
            slow_in.setdefault(id(judged), set()).add(rank)
    for rank, found in slow.items():
        by_cause: dict[SlowCause, list[list[_Judged]]] = {}
        for stretch in found:
            for part in _parts(rank, stretch, setup):
                look = looks.get(rank) if lasts(part, rows) else None
                by_cause.setdefault(find_cause(_evidence(rank, part, setup, look)), []).append(part)
        for cause, parts in by_cause.items():
            flat = [judged for stretch in parts for judged in stretch]
            is_current = lasts(flat, rows)
            look = looks.get(rank) if is_current else None
            yield _finding(rank, flat, cause, _evidence(rank, flat, setup, look), setup, slow_in, is_current)


def _parts(rank: int, stretch: list[_Judged], setup: RunSetup) -> Iterator[list[_Judged]]:
    """One, or two where the rank is slow for another cause in the end: what slows it now is what can be mended."""

    def cause(windows: Sequence[_Judged]) -> SlowCause:
        return find_cause(_evidence(rank, windows, setup, None))

    at = len(stretch) - ROW
    if at >= ROW and cause(stretch[:at]) != (last := cause(stretch[at:])):
        while at > 0 and cause(stretch[at - 1 : at]) == last:
            at -= 1
        yield from (part for part in (stretch[:at], stretch[at:]) if part)
    else:
        yield stretch


def _is_slow(rank: int, host: str, judged: _Judged) -> bool:
    more = judged.more.get(rank, 0.0)
    return more >= MORE_OWN or (more >= MORE_OWN / 2 and _is_limited(host, judged))


def _is_limited(host: str, judged: _Judged) -> bool:
    """Whether the limit of a cgroup stopped the ranks of that host, and not those of most others."""
    throttled = {name: rates.throttled or 0.0 for name, rates in judged.window.hosts.items()}
    usual = medians_of_others(throttled).get(host, 0.0)
    return throttled.get(host, 0.0) - usual >= LIMITED


def _finding(
    rank: int,
    flat: Sequence[_Judged],
    cause: SlowCause,
    evidence: Evidence,
    setup: RunSetup,
    slow_in: Mapping[int, set[int]],
    is_current: bool,
) -> SlowFinding:
    seconds = sum(judged.window.seconds for judged in flat)
    cost = sum(_cost(rank, judged, slow_in[id(judged)]) * judged.window.seconds for judged in flat)
    return SlowFinding(
        rank=rank,
        host=setup.hosts[rank],
        percent=100 * evidence.more,
        cost_percent=100 * cost / seconds,
        cost_seconds=cost,
        cause=cause,
        evidence=evidence,
        start=flat[0].window.start,
        end=flat[-1].window.end,
        windows=len(flat),
        is_current=is_current,
    )


def _cost(rank: int, judged: _Judged, slow: set[int]) -> float:
    """By which a step would be shorter if this rank were like the slowest of those that are not slow."""
    others = [own.total for other, own in judged.own.items() if other not in slow and own.total is not None]
    own = judged.own[rank].total or 0.0
    return max(0.0, own - max(others, default=own))


def _evidence(rank: int, flat: Sequence[_Judged], setup: RunSetup, look: SuspectLook | None) -> Evidence:
    host = setup.hosts[rank]
    mates = [other for other, name in setup.hosts.items() if name == host and other != rank]
    mates_more = [fmean(judged.more.get(mate, 0.0) for judged in flat) for mate in mates]
    figures = _Comparison(rank, host, flat)
    own = figures.own(lambda time: time.total)
    samples = figures.rates(lambda rates: rates.samples_per_s)
    cpu, queue = figures.own(lambda time: time.cpu), figures.own(lambda time: time.queue)
    hot, mhz = figures.host(lambda rates: rates.hot_per_s), figures.host(lambda rates: rates.mhz)
    return Evidence(
        own=own.value or 0.0,
        usual_own=own.usual or 0.0,
        cpu_more=cpu.more,
        queue_more=queue.more,
        data_more=figures.own(lambda time: time.data).more,
        disk_more=figures.own(lambda time: time.disk).more,
        usual_cpu=cpu.usual,
        usual_queue=queue.usual,
        samples_ratio=samples.value / samples.usual if samples.value and samples.usual else None,
        faults_more=figures.rates(lambda rates: rates.major_faults_per_s).more,
        is_whole_host=all(more >= MORE_OWN / 2 for more in mates_more),
        throttled_more=figures.host(lambda rates: rates.throttled).more_or_all,
        steal_more=figures.host(lambda rates: rates.steal).more_or_all,
        mhz=mhz.value,
        usual_mhz=mhz.usual,
        hot=hot.value,
        usual_hot=hot.usual,
        io_pressure=figures.host(lambda rates: rates.io_pressure).value,
        disk_busy=figures.host(lambda rates: rates.disk_busy).value,
        look=look,
    )


class _Compared(NamedTuple):
    """The mean figure of one in some windows, and the median of the means of the others."""

    value: float | None
    usual: float | None

    @property
    def more(self) -> float | None:
        return None if self.value is None or self.usual is None else self.value - self.usual

    @property
    def more_or_all(self) -> float | None:
        """All of it where there is no other host."""
        return self.value if self.usual is None else self.more


class _Comparison:
    """Compares a rank with the others, and its host with the other hosts, in some windows."""

    def __init__(self, rank: int, host: str, flat: Sequence[_Judged]) -> None:
        self._rank, self._host, self._flat = rank, host, flat

    def own(self, figure: Callable[[OwnTime], float | None]) -> _Compared:
        return _compared(self._rank, [{rank: figure(own) for rank, own in j.own.items()} for j in self._flat])

    def rates(self, figure: Callable[[RankRates], float | None]) -> _Compared:
        ranks = [{rank: figure(rates) for rank, rates in judged.window.ranks.items()} for judged in self._flat]
        return _compared(self._rank, ranks)

    def host(self, figure: Callable[[HostRates], float | None]) -> _Compared:
        hosts = [{host: figure(rates) for host, rates in judged.window.hosts.items()} for judged in self._flat]
        return _compared(self._host, hosts)


def _compared(key: object, windows: Sequence[Mapping[Any, float | None]]) -> _Compared:
    values: dict[object, list[float]] = {}
    for window in windows:
        for each, value in window.items():
            if value is not None:
                values.setdefault(each, []).append(value)
    means = {each: fmean(found) for each, found in values.items()}
    others = [mean for each, mean in means.items() if each != key]
    return _Compared(means.get(key), median(others) if others else None)


def _all_wait(rows: Sequence[Sequence[_Judged]]) -> Iterator[SlowFinding]:
    """All ranks wait for data: no rank is slower than the others then."""
    found = [judged for stretch in stretches(rows, _waits_for_data) for judged in stretch]
    if not found:
        return
    seconds = sum(judged.window.seconds for judged in found)
    part = sum((_median_wait(judged) or 0.0) * judged.window.seconds for judged in found) / seconds
    own = median(own.total or 0.0 for judged in found for own in judged.own.values())
    yield SlowFinding(
        rank=None,
        host="",
        percent=100 * part,
        cost_percent=100 * part,
        cost_seconds=part * seconds,
        cause=SlowCause("all-wait-for-data", "likely"),
        evidence=Evidence(own, own, data_more=part),
        start=found[0].window.start,
        end=found[-1].window.end,
        windows=len(found),
        is_current=lasts(found, rows),
    )


def _median_wait(judged: _Judged) -> float | None:
    waits = [own.data for own in judged.own.values() if own.data is not None]
    return median_low(waits) if waits else None


def _waits_for_data(judged: _Judged) -> bool:
    wait = _median_wait(judged)
    return wait is not None and wait >= ALL_WAIT
