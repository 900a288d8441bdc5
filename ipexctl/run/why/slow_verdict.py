"""Judges which ranks of a run are slow, since when, why, and what it costs; judges the network separately. Pure. A rank
is slow if its own time is at least MORE_OWN of a step above the median of the other ranks, in ROW successive judged
windows. The network is slow if no rank's own time explains a good part of each step and large transfers take longer
than on 1 Gbit/s. No link is blamed while ranks wait for processors or disks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean, median
from typing import Any, Final, Literal, NamedTuple, TypeVar

from ipexctl.node.common.lever_records import Lever
from ipexctl.node.common.medians import medians_of_others
from ipexctl.node.common.records import NetworkCost
from ipexctl.node.run.meter.rates import RankRates, Waiting
from ipexctl.node.run.meter.slow_watch import MORE_OWN, ROW, Streak
from ipexctl.node.run.run_replies import SuspectSnapshot
from ipexctl.run.why.timeline import TrainingWindow, training_rows
from ipexctl.run.windows import RunWindows

CauseKind = Literal["other-programs", "slower-cores", "data", "memory", "more-work", "unknown"]
SlowConfidence = Literal["likely", "possible", "insufficient"]
EXPLAINS: Final = 0.5
UNSEEN_SHARE: Final = 0.2
"""In parts of a processor. A smaller time without a visible process is noise: it is the difference of rough figures."""
LOWER_CLOCK: Final = 0.95
FAULTS: Final = 10.0
"""Page faults per second, more than the other ranks."""
MORE_SAMPLES: Final = 1.05


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one rank used in its slow windows. `…_more`: difference to the other ranks' median; None if unknown."""

    own: float
    """Own time, in parts of a step."""
    usual_own: float
    cpu_more: float | None = None
    queue_more: float | None = None
    data_more: float | None = None
    usual_cpu: float | None = None
    usual_queue: float | None = None
    samples_ratio: float | None = None
    """Samples per second relative to the other ranks, or None."""
    faults_more: float | None = None
    mhz: float | None = None
    usual_mhz: float | None = None
    look: SuspectSnapshot | None = None

    @property
    def more(self) -> float:
        """Return how much longer the rank's own time is than the usual one, in parts of a step."""
        return self.own - self.usual_own

    @property
    def crowding(self) -> float | None:
        """Additional time in the run queue, less what the other ranks would wait with that much work."""
        if self.queue_more is None or self.cpu_more is None or self.usual_queue is None or not self.usual_cpu:
            return self.queue_more
        return self.queue_more - self.usual_queue * self.cpu_more / self.usual_cpu

    @property
    def has_more_samples(self) -> bool:
        """Return True if the rank trains on more samples per second than the others."""
        return (self.samples_ratio or 0.0) >= MORE_SAMPLES

    def explains(self, part: float | None) -> bool:
        """Return True if this part of a step is at least EXPLAINS of the additional own time."""
        return part is not None and part >= EXPLAINS * self.more


class SlowCause(NamedTuple):
    """Why a rank is slow, and how sure that is."""

    kind: CauseKind
    confidence: SlowConfidence


def find_cause(evidence: Evidence) -> SlowCause:
    """The first signature that fits; a cause must explain at least EXPLAINS of the rank's additional own time. It is
    `possible` if others resemble it: a rank with more work also waits longer for crowded cores. If none fits, the
    evidence is `insufficient`.
    """
    return next((cause for cause, fits in SIGNATURES if fits(evidence)), _UNKNOWN)


def needs_snapshot(cause: SlowCause) -> bool:
    """Return True if a look at the rank's host can tell more."""
    return cause == _CONTENTION


def _has_other_programs(evidence: Evidence) -> bool:
    snapshot = evidence.look
    if snapshot is None or not _waits_for_processor(evidence):
        return False
    unseen = snapshot.unseen_share or 0.0
    seen = sum(process.share for process in snapshot.others)
    return evidence.explains(seen) or (unseen >= UNSEEN_SHARE and evidence.explains(unseen))


def _waits_for_processor(evidence: Evidence) -> bool:
    return evidence.explains(evidence.crowding)


def _computes_longer(evidence: Evidence) -> bool:
    return evidence.explains(evidence.cpu_more)


def _has_lower_clock(evidence: Evidence) -> bool:
    mhz, usual = evidence.mhz, evidence.usual_mhz
    if not mhz or not usual or mhz > LOWER_CLOCK * usual or not _computes_longer(evidence):
        return False
    return evidence.explains((usual / mhz - 1.0) * (evidence.usual_cpu or evidence.usual_own))


def _waits_for_data(evidence: Evidence) -> bool:
    return evidence.explains(evidence.data_more)


def _lacks_memory(evidence: Evidence) -> bool:
    return (evidence.faults_more or 0.0) >= FAULTS


def _has_more_samples(evidence: Evidence) -> bool:
    return _computes_longer(evidence) and evidence.has_more_samples


_UNKNOWN: Final = SlowCause("unknown", "insufficient")
_CONTENTION: Final = SlowCause("other-programs", "possible")
SIGNATURES: Final[tuple[tuple[SlowCause, Callable[[Evidence], bool]], ...]] = (
    (SlowCause("other-programs", "likely"), _has_other_programs),
    (_CONTENTION, _waits_for_processor),
    (SlowCause("slower-cores", "possible"), _has_lower_clock),
    (SlowCause("data", "likely"), _waits_for_data),
    (SlowCause("memory", "possible"), _lacks_memory),
    (SlowCause("more-work", "likely"), _has_more_samples),
    (SlowCause("more-work", "possible"), _computes_longer),
)
"""Specific signatures come before signatures that they resemble."""


TRANSFER: Final = 0.3
"""A network is slow only if no rank's own time explains at least this part of a step."""
STEP_BYTES: Final = 1 << 20
"""A network is slow only if each host sends this much in a step; with less, round trips dominate."""
SLOW_SPEED: Final = 1e9 / 8
"""Bytes per second; slower transfers are slow."""
CROWDED: Final = 0.25
"""A rank is crowded if its threads wait for a processor for this part of the time."""
Window = TypeVar("Window")


@dataclass(frozen=True, slots=True)
class LinkFinding:
    """A time in which the network between these hosts was slow."""

    hosts: tuple[str, ...]
    start: float
    end: float
    windows: int
    is_current: bool
    """True if the link is slow in one of the last two windows."""
    transfer: float
    """Part of a step that ranks transfer, or wait for a transfer."""
    bytes_per_s: float
    """Transfer rate of the slowest host."""


def find_slow_links(rows: Sequence[Sequence[TrainingWindow]]) -> list[LinkFinding]:
    """Return the times in which the network was slow; empty with one host."""
    hosts = tuple(dict.fromkeys(host for row in rows for window in row for host in window.hosts))
    if len(hosts) < 2:
        return []
    return [
        LinkFinding(
            hosts,
            stretch[0].start,
            stretch[-1].end,
            len(stretch),
            is_ongoing(stretch, rows),
            median(transfer_part(window) or 0.0 for window in stretch),
            fmean(map(transfer_speed, stretch)),
        )
        for stretch in find_stretches(rows, is_slow_transfer)
    ]


def find_stretches(rows: Iterable[Sequence[Window]], is_so: Callable[[Window], bool]) -> Iterator[list[Window]]:
    """Windows of each streak for which `is_so` holds."""
    for row in rows:
        streak = Streak()
        stretch: list[Window] = []
        for window in row:
            counts = is_so(window)
            streak.add(counts=counts)
            if counts:
                stretch.append(window)
            elif not streak.length:
                if len(stretch) >= ROW:
                    yield stretch
                stretch = []
        if streak.has_begun:
            yield stretch


def is_ongoing(stretch: Sequence[Window], rows: Sequence[Sequence[Window]]) -> bool:
    """True if the stretch reaches one of the last two windows: one may miss a threshold, because figures vary."""
    return any(stretch[-1] is window for window in rows[-1][-2:])


def transfer_part(window: TrainingWindow) -> float | None:
    """Part of a step that is no rank's own time; None if some rank's wait is unknown."""
    waits = [rates.collective_wait for rates in window.ranks.values()]
    known = [wait for wait in waits if wait is not None]
    return min(known) if known and len(known) == len(waits) else None


def transfer_speed(window: TrainingWindow) -> float:
    """Transfer rate, in bytes per second, of the host that sends least; 0 if unknown."""
    part = transfer_part(window)
    sent = [rates.sent_per_s for rates in window.hosts.values() if rates.sent_per_s is not None]
    return min(sent) / part if part and sent else 0.0


def is_slow_transfer(window: TrainingWindow) -> bool:
    """Return True if the window's steps wait for transfers that are slower than SLOW_SPEED, and no rank or disk
    explains it."""
    part, speed = transfer_part(window), transfer_speed(window)
    if part is None or part < TRANSFER or not 0 < speed < SLOW_SPEED:
        return False
    if any((rates.peak_sent_per_s or 0.0) >= SLOW_SPEED for rates in window.hosts.values()):
        return False
    if any((rates.queue or 0.0) >= CROWDED or (rates.faults_per_s or 0.0) >= FAULTS for rates in window.ranks.values()):
        return False
    return speed * part * window.seconds / max(window.steps, 1e-9) >= STEP_BYTES


TOGETHER: Final = 0.2
"""If ranks step together, their steps in a window differ by at most this part of the median."""
Unjudged = Literal["", "no-windows", "too-short", "no-own-time", "independent", "not-together", "one-rank"]


@dataclass(frozen=True, slots=True)
class RunSetup:
    """What is known of a run before its windows are judged. `hosts`: rank → host."""

    hosts: Mapping[int, str] = field(hash=False)
    waiting: Waiting = "sleeps"
    network: NetworkCost | None = None
    """Measured by the supervisor; None if it was not."""
    levers: tuple[Lever, ...] = ()
    amx_idle: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Both as in the status of the run."""


@dataclass(frozen=True, slots=True)
class SlowFinding:
    """A rank that was slow for some time, what that cost, and why."""

    rank: int
    host: str
    percent: float
    """Own time above the usual own time, in percent of a step."""
    cost_percent: float
    """Upper limit of the time that steps would save without the slowness, in percent."""
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
    """Slow ranks and links of a run. `unjudged` says why nothing was judged; empty if it was."""

    findings: tuple[SlowFinding, ...] = ()
    """Current findings first, then by cost."""
    links: tuple[LinkFinding, ...] = ()
    windows: int = 0
    seconds: float = 0.0
    """Duration of the judged windows together."""
    waiting: Waiting = "sleeps"
    unjudged: Unjudged = ""
    network: NetworkCost | None = None
    """What transfers between hosts cost; known even if no ranks are compared."""
    levers: tuple[Lever, ...] = ()
    amx_idle: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Both as in the status of the run."""


@dataclass(frozen=True, slots=True)
class _OwnTimes:
    """A window with the own time of each rank."""

    window: TrainingWindow
    own: Mapping[int, float] = field(hash=False)
    more: Mapping[int, float] = field(hash=False)
    """Rank → own time above the median of the other ranks."""


def find_slow_ranks(
    windows: RunWindows, setup: RunSetup, snapshots: Mapping[int, SuspectSnapshot] | None = None
) -> SlowVerdict:
    """Judge a run. `snapshots` were taken now, so they only count for ranks that are slow now."""
    hosts = {setup.hosts[rank]: rates for rank, rates in windows.hosts.items() if rank in setup.hosts}
    rows = training_rows(windows.ranks, hosts)
    flat = [window for row in rows for window in row]
    seconds = sum(window.seconds for window in flat)
    verdict = SlowVerdict(
        windows=len(flat),
        seconds=seconds,
        waiting=setup.waiting,
        network=setup.network,
        levers=setup.levers,
        amx_idle=setup.amx_idle,
    )
    if not flat:
        return replace(verdict, unjudged=_without_windows(windows))
    times = [[_own_times(window) for window in row] for row in rows]
    unjudged = _unjudged(times, setup)
    slow = [] if unjudged else list(_slow_ranks(times, setup, snapshots or {}))
    findings = sorted(slow, key=lambda finding: (not finding.is_current, -finding.cost_seconds))
    return replace(verdict, findings=tuple(findings), links=tuple(find_slow_links(rows)), unjudged=unjudged)


def _without_windows(windows: RunWindows) -> Unjudged:
    steps = [any(rates is not None and rates.steps_per_s > 0 for rates in r.windows) for r in windows.ranks.values()]
    return "no-windows" if not any(steps) else "too-short" if all(steps) else "not-together"


def _unjudged(rows: Sequence[Sequence[_OwnTimes]], setup: RunSetup) -> Unjudged:
    flat = [times for row in rows for times in row]
    if setup.waiting == "independent":
        return "independent"
    if len(setup.hosts) < 2:
        return "one-rank"
    if max(map(len, rows)) < ROW:
        return "too-short"
    if not any(times.more for times in flat):
        return "no-own-time"
    together = sum(_steps_together(times.window) for times in flat)
    return "" if 2 * together > len(flat) else "not-together"


def _steps_together(window: TrainingWindow) -> bool:
    steps = [rates.steps_per_s for rates in window.ranks.values()]
    usual = median(steps)
    return usual > 0 and all(abs(seconds - usual) <= TOGETHER * usual for seconds in steps)


def _own_times(window: TrainingWindow) -> _OwnTimes:
    own = {rank: rates.own_time for rank, rates in window.ranks.items() if rates.own_time is not None}
    return _OwnTimes(window, own, {rank: own[rank] - usual for rank, usual in medians_of_others(own).items()})


def _slow_ranks(
    rows: Sequence[Sequence[_OwnTimes]], setup: RunSetup, snapshots: Mapping[int, SuspectSnapshot]
) -> Iterator[SlowFinding]:
    slow: dict[int, list[list[_OwnTimes]]] = {}
    for rank in setup.hosts:
        stretches = list(find_stretches(rows, partial(_is_slow, rank)))
        if stretches:
            slow[rank] = stretches
    slow_in: dict[int, set[int]] = {}
    for rank, stretches in slow.items():
        for times in (times for stretch in stretches for times in stretch):
            slow_in.setdefault(id(times), set()).add(rank)
    for rank, stretches in slow.items():
        by_cause: dict[SlowCause, list[list[_OwnTimes]]] = {}
        for stretch in stretches:
            for part in _parts(rank, stretch, setup):
                snapshot = snapshots.get(rank) if is_ongoing(part, rows) else None
                by_cause.setdefault(find_cause(_evidence(rank, part, setup, snapshot)), []).append(part)
        for cause, parts in by_cause.items():
            flat = [times for stretch in parts for times in stretch]
            is_current = is_ongoing(flat, rows)
            snapshot = snapshots.get(rank) if is_current else None
            yield _finding(rank, flat, cause, _evidence(rank, flat, setup, snapshot), setup, slow_in, is_current)


def _parts(rank: int, stretch: list[_OwnTimes], setup: RunSetup) -> Iterator[list[_OwnTimes]]:
    """One part, or two if the cause changed towards the end: only the current cause can be fixed."""

    def cause(windows: Sequence[_OwnTimes]) -> SlowCause:
        return find_cause(_evidence(rank, windows, setup, None))

    at = len(stretch) - ROW
    if at >= ROW and cause(stretch[:at]) != (last := cause(stretch[at:])):
        while at > 0 and cause(stretch[at - 1 : at]) == last:
            at -= 1
        yield from (part for part in (stretch[:at], stretch[at:]) if part)
    else:
        yield stretch


def _is_slow(rank: int, times: _OwnTimes) -> bool:
    return times.more.get(rank, 0.0) >= MORE_OWN


def _finding(
    rank: int,
    flat: Sequence[_OwnTimes],
    cause: SlowCause,
    evidence: Evidence,
    setup: RunSetup,
    slow_in: Mapping[int, set[int]],
    is_current: bool,
) -> SlowFinding:
    seconds = sum(times.window.seconds for times in flat)
    cost = sum(_cost(rank, times, slow_in[id(times)]) * times.window.seconds for times in flat)
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


def _cost(rank: int, times: _OwnTimes, slow: set[int]) -> float:
    """How much shorter a step would be if this rank were like the slowest rank that is not slow."""
    others = [own for other, own in times.own.items() if other not in slow]
    own = times.own[rank]
    return max(0.0, own - max(others, default=own))


def _evidence(rank: int, flat: Sequence[_OwnTimes], setup: RunSetup, snapshot: SuspectSnapshot | None) -> Evidence:
    host = setup.hosts[rank]

    def compare(figure: Callable[[RankRates], float | None]) -> _Compared:
        return _compared(rank, [{at: figure(rates) for at, rates in moment.window.ranks.items()} for moment in flat])

    own, samples = compare(lambda rates: rates.own_time), compare(lambda rates: rates.samples_per_s)
    cpu, queue = compare(lambda rates: rates.cpu), compare(lambda rates: rates.queue)
    mhz = _compared(host, [{name: rates.mhz for name, rates in moment.window.hosts.items()} for moment in flat])
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
        look=snapshot,
    )


class _Compared(NamedTuple):
    value: float | None
    usual: float | None

    @property
    def more(self) -> float | None:
        """Return the difference to the others' value; None if either is unknown."""
        return None if self.value is None or self.usual is None else self.value - self.usual


def _compared(key: object, windows: Sequence[Mapping[Any, float | None]]) -> _Compared:
    values: dict[object, list[float]] = {}
    for window in windows:
        for name, value in window.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    means = {name: fmean(numbers) for name, numbers in values.items()}
    others = [mean for name, mean in means.items() if name != key]
    return _Compared(means.get(key), median(others) if others else None)
