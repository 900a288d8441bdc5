"""Judges which ranks of a run are slow, since when, why, and what it costs; and its network apart from that. Pure.

A rank is slow if its own time is at least MORE_OWN of a step above the median of the other ranks, in ROW judged windows
in a row of at least 30 steps each. Two ranks are enough, because the one that waits is not the slow one. The network is
slow if no rank's own time explains a good part of each step and large transfers take longer than on 1 Gbit/s. No link
is blamed while ranks wait for processors or disks. What cannot be known is not guessed (`unjudged`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean, median
from typing import Any, Final, Literal, NamedTuple, TypeVar

from ipexctl.extras.slow.causes import FAULTS, Evidence, SlowCause, find_cause
from ipexctl.extras.slow.timeline import JudgedWindow, judged_rows
from ipexctl.node.common.medians import medians_of_others
from ipexctl.node.common.records import NetworkCost
from ipexctl.node.run.rates import RankRates, Waiting
from ipexctl.node.run.replies import SuspectLook
from ipexctl.node.run.slow_watch import MORE_OWN, ROW
from ipexctl.run.windows import RunWindows

TRANSFER: Final = 0.3
"""The part of a step that no rank's own time explains."""
STEP_BYTES: Final = 1 << 20
"""Sent by each host in a step; with less, round trips dominate."""
SLOW_SPEED: Final = 1e9 / 8
"""Bytes per second."""
CROWDED: Final = 0.25
"""The part of the time in which a rank's threads wait for a processor."""
Window = TypeVar("Window")


@dataclass(frozen=True, slots=True)
class LinkFinding:
    hosts: tuple[str, ...]
    start: float
    end: float
    windows: int
    is_current: bool
    """True if it is so in one of the last two windows."""
    transfer: float
    """The part of a step that is transfer and waiting for it."""
    bytes_per_s: float
    """While data is transferred, on the slowest host."""


def judge_network(rows: Sequence[Sequence[JudgedWindow]]) -> list[LinkFinding]:
    hosts = tuple(dict.fromkeys(host for row in rows for window in row for host in window.hosts))
    if len(hosts) < 2:
        return []
    return [
        LinkFinding(
            hosts,
            stretch[0].start,
            stretch[-1].end,
            len(stretch),
            lasts(stretch, rows),
            median(transfer_part(window) or 0.0 for window in stretch),
            fmean(map(transfer_speed, stretch)),
        )
        for stretch in stretches(rows, is_slow_transfer)
    ]


def stretches(rows: Iterable[Sequence[Window]], is_so: Callable[[Window], bool]) -> Iterator[list[Window]]:
    """Stretches of at least ROW windows in a row for which `is_so`; after these, a single other window is skipped."""
    for row in rows:
        found: list[Window] = []
        missed = 0
        for window in [*row, None]:
            if window is not None and is_so(window):
                found.append(window)
                missed = 0
                continue
            missed += 1
            if window is not None and missed == 1 and len(found) >= ROW:
                continue
            if len(found) >= ROW:
                yield found
            found, missed = [], 0


def lasts(stretch: Sequence[Window], rows: Sequence[Sequence[Window]]) -> bool:
    """True if it is still so: one window may be below a threshold, because they vary and the call itself is a load."""
    return any(stretch[-1] is window for window in rows[-1][-2:])


def transfer_part(window: JudgedWindow) -> float | None:
    """The part of a step that is nobody's own time; None if some rank's wait is unknown."""
    waits = [rates.collective_wait for rates in window.ranks.values()]
    known = [wait for wait in waits if wait is not None]
    return min(known) if known and len(known) == len(waits) else None


def transfer_speed(window: JudgedWindow) -> float:
    """Bytes per second of the host that sends least, while it transfers; 0 if unknown."""
    part = transfer_part(window)
    sent = [rates.sent_per_s for rates in window.hosts.values() if rates.sent_per_s is not None]
    return min(sent) / part if part and sent else 0.0


def is_slow_transfer(window: JudgedWindow) -> bool:
    part, speed = transfer_part(window), transfer_speed(window)
    if part is None or part < TRANSFER or not 0 < speed < SLOW_SPEED:
        return False
    if any((rates.peak_sent_per_s or 0.0) >= SLOW_SPEED for rates in window.hosts.values()):
        return False
    if any((rates.queue or 0.0) >= CROWDED or (rates.faults_per_s or 0.0) >= FAULTS for rates in window.ranks.values()):
        return False
    return speed * part * window.seconds / max(window.steps, 1e-9) >= STEP_BYTES


TOGETHER: Final = 0.2
"""How much the steps of ranks in a window may differ, in parts of the median, if they step together."""
Unjudged = Literal[
    "", "older-version", "no-windows", "too-short", "no-own-time", "independent", "not-together", "one-rank"
]


@dataclass(frozen=True, slots=True)
class RunSetup:
    hosts: Mapping[int, str] = field(hash=False)
    waiting: Waiting = "sleeps"
    network: NetworkCost | None = None
    """As the supervisor measured it."""


@dataclass(frozen=True, slots=True)
class SlowFinding:
    rank: int
    host: str
    percent: float
    """Own time above the usual, in percent of a step."""
    cost_percent: float
    """Upper limit: how much less time steps would take without it."""
    cost_seconds: float
    cause: SlowCause
    evidence: Evidence
    start: float
    end: float
    windows: int
    is_current: bool
    """True if the rank is slow in one of the last two windows."""


@dataclass(frozen=True, slots=True)
class SlowVerdict:
    findings: tuple[SlowFinding, ...] = ()
    """Current ones first, then by cost."""
    links: tuple[LinkFinding, ...] = ()
    windows: int = 0
    seconds: float = 0.0
    """Of these windows."""
    waiting: Waiting = "sleeps"
    unjudged: Unjudged = ""
    network: NetworkCost | None = None
    """What transfers between hosts cost; known even if no rank is compared."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """A window with the own time of each rank."""

    window: JudgedWindow
    own: Mapping[int, float] = field(hash=False)
    more: Mapping[int, float] = field(hash=False)
    """Rank → own time above the median of the others."""


def judge(windows: RunWindows, setup: RunSetup, looks: Mapping[int, SuspectLook] | None = None) -> SlowVerdict:
    """Judge a run; `looks` are from now, so they count for ranks that are slow now."""
    hosts = {setup.hosts[rank]: found for rank, found in windows.hosts.items() if rank in setup.hosts}
    rows = judged_rows(windows.ranks, hosts)
    flat = [window for row in rows for window in row]
    seconds = sum(window.seconds for window in flat)
    verdict = SlowVerdict(windows=len(flat), seconds=seconds, waiting=setup.waiting, network=setup.network)
    if not flat:
        return replace(verdict, unjudged=_without_windows(windows))
    judged = [[_judged(window) for window in row] for row in rows]
    unjudged = _unjudged(judged, setup)
    slow = [] if unjudged else list(_slow_ranks(judged, setup, looks or {}))
    findings = sorted(slow, key=lambda found: (not found.is_current, -found.cost_seconds))
    return replace(verdict, findings=tuple(findings), links=tuple(judge_network(rows)), unjudged=unjudged)


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


def _judged(window: JudgedWindow) -> _Judged:
    own = {rank: rates.own_time for rank, rates in window.ranks.items() if rates.own_time is not None}
    return _Judged(window, own, {rank: own[rank] - usual for rank, usual in medians_of_others(own).items()})


def _slow_ranks(
    rows: Sequence[Sequence[_Judged]], setup: RunSetup, looks: Mapping[int, SuspectLook]
) -> Iterator[SlowFinding]:
    slow: dict[int, list[list[_Judged]]] = {}
    for rank in setup.hosts:
        found = list(stretches(rows, partial(_is_slow, rank)))
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
    """One part, or two if the rank is slow for another cause in the end: only what slows it now can be fixed."""

    def cause(windows: Sequence[_Judged]) -> SlowCause:
        return find_cause(_evidence(rank, windows, setup, None))

    at = len(stretch) - ROW
    if at >= ROW and cause(stretch[:at]) != (last := cause(stretch[at:])):
        while at > 0 and cause(stretch[at - 1 : at]) == last:
            at -= 1
        yield from (part for part in (stretch[:at], stretch[at:]) if part)
    else:
        yield stretch


def _is_slow(rank: int, judged: _Judged) -> bool:
    return judged.more.get(rank, 0.0) >= MORE_OWN


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
    """How much shorter a step would be if this rank were like the slowest of those that are not slow."""
    others = [own for other, own in judged.own.items() if other not in slow]
    own = judged.own[rank]
    return max(0.0, own - max(others, default=own))


def _evidence(rank: int, flat: Sequence[_Judged], setup: RunSetup, look: SuspectLook | None) -> Evidence:
    host = setup.hosts[rank]

    def compare(figure: Callable[[RankRates], float | None]) -> _Compared:
        return _compared(rank, [{at: figure(rates) for at, rates in each.window.ranks.items()} for each in flat])

    own, samples = compare(lambda rates: rates.own_time), compare(lambda rates: rates.samples_per_s)
    cpu, queue = compare(lambda rates: rates.cpu), compare(lambda rates: rates.queue)
    mhz = _compared(host, [{name: rates.mhz for name, rates in each.window.hosts.items()} for each in flat])
    return Evidence(
        own=own.value or 0.0,
        usual_own=own.usual or 0.0,
        cpu_more=cpu.more,
        queue_more=queue.more,
        data_more=compare(lambda rates: rates.data_wait).more,
        usual_cpu=cpu.usual,
        usual_queue=queue.usual,
        samples_ratio=samples.value / samples.usual if samples.value and samples.usual else None,
        faults_more=compare(lambda rates: rates.faults_per_s).more,
        mhz=mhz.value,
        usual_mhz=mhz.usual,
        look=look,
    )


class _Compared(NamedTuple):
    value: float | None
    usual: float | None

    @property
    def more(self) -> float | None:
        return None if self.value is None or self.usual is None else self.value - self.usual


def _compared(key: object, windows: Sequence[Mapping[Any, float | None]]) -> _Compared:
    values: dict[object, list[float]] = {}
    for window in windows:
        for each, value in window.items():
            if value is not None:
                values.setdefault(each, []).append(value)
    means = {each: fmean(found) for each, found in values.items()}
    others = [mean for each, mean in means.items() if each != key]
    return _Compared(means.get(key), median(others) if others else None)
