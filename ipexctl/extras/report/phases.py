"""The phases of a run: checks, sync, start, import, warm-up, steps, the end; again for each attempt. Pure.

Phases without a length are left out; without measured steps a script is one phase. The first step is known to about 10
s, a window's length.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Final, Literal

from ipexctl.extras.report.measurements import Measurements, Window
from ipexctl.node.common.records import as_dict, as_number
from ipexctl.run.why.run_snapshot import RunSnapshot

PhaseKind = Literal[
    "checks", "sync", "start", "checkpoint", "import", "warm-up", "steps", "script", "silent", "restart", "end"
]
_MAX_BEFORE: Final = 7 * 86400.0
_SHORTEST: Final = 0.05
_MIN_WARM: Final = 6
"""Windows needed to know a usual speed."""
_WARM: Final = 0.9
"""Share of the usual speed at which the warm-up is over."""


@dataclass(frozen=True, slots=True)
class RunPhase:
    kind: PhaseKind
    begin: float
    """Seconds since the start."""
    end: float
    text: str


def before_start(plan: Mapping[str, Any]) -> dict[str, float]:
    before = as_dict(plan.get("before_start"))
    found = {name: as_number(before.get(name)) or 0.0 for name in ("checks", "sync")}
    return {name: seconds for name, seconds in found.items() if 0.0 < seconds < _MAX_BEFORE}


def find_phases(
    snapshot: RunSnapshot, measured: Measurements, before: Mapping[str, float], start: float, end: float
) -> Iterator[RunPhase]:
    """`start`: when the checks began; `end`: when the run ended, or now."""
    checked = before.get("checks", 0.0)
    origin = start + sum(before.values())
    if checked:
        yield RunPhase("checks", 0.0, checked, "hosts, environment and connections are checked")
    if "sync" in before:
        yield RunPhase("sync", checked, origin - start, "the project is uploaded")
    ends = [attempt.ended for attempt in snapshot.status.attempts if attempt.ended is not None]
    borders = [origin, *sorted(min(max(at, origin), end) for at in ends), end]
    for number, (begin, over) in enumerate(pairwise(borders)):
        if number:
            reason = snapshot.restarts[number - 1] if number <= len(snapshot.restarts) else ""
            text = f"restart {number}{f': {reason}' if reason else ''}"
            yield RunPhase("restart", begin - start, begin - start, text)
        marks = [*_attempt(snapshot, measured, begin, over), (over, "end", "")]
        for (at, kind, text), (until, _, _) in pairwise(marks):
            if until - at >= _SHORTEST:
                yield RunPhase(kind, at - start, until - start, text)
    silent = snapshot.status.silent
    if silent is not None and origin <= silent.since < end:
        yield RunPhase("silent", silent.since - start, end - start, "no rank printed anything")


_Mark = tuple[float, PhaseKind, str]


def _attempt(snapshot: RunSnapshot, measured: Measurements, begin: float, over: float) -> Iterator[_Mark]:
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
    yield last, "end", "after the last step"


def _exchange(snapshot: RunSnapshot, begin: float, begun: float) -> float | None:
    """When the checkpoint exchange began: all ranks were connected then."""
    if not any(begin <= at <= begun for at in _times_of(snapshot, "checkpoint")):
        return None
    return max((at for at in _times_of(snapshot, "connected") if begin <= at <= begun), default=None)


def _times_of(snapshot: RunSnapshot, name: str) -> Sequence[float]:
    found = (as_number(event.get("at")) for event in snapshot.events if event.get("event") == name)
    return sorted(at for at in found if at is not None)


def _steps_between(measured: Measurements, begin: float, end: float) -> tuple[float, float] | None:
    """Time span of windows with steps, of any rank; None without any."""
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
    """When the lowest measured rank reaches the usual speed; `begin` with too few windows to know."""
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
