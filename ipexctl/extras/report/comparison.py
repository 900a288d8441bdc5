"""Compares two runs: settings that differ, and the change of throughput with its confidence interval. Pure.

Windows within a run are correlated, so each run gives the means of a few equal parts. The interval is Welch's; with
fewer than `MIN_PARTS` parts there is none. Two starts of one program also differ (docs/benchmarks.md).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ipexctl.extras.report.page import ReportPage, TimeCurve

PARTS: Final = 10
MIN_PARTS: Final = 5
_WARM_UP: Final = 0.1
_T_95: Final = {4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 12: 2.18, 14: 2.14, 16: 2.12}
"""Student's t for 95 % by degrees of freedom; for numbers not listed, the next lower one, whose interval is wider."""


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """Throughput of this run divided by the other's, minus 1, with 95 % bounds."""

    unit: str
    before: float
    after: float
    low: float | None
    high: float | None

    @property
    def ratio(self) -> float:
        return self.after / self.before - 1


Incomparable = Literal["not-measured", "other-unit", "too-short"]
"""A run has no steps, the curves have different units, or a run has only windows of its start."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    other: str
    settings: tuple[ChangedSetting, ...]
    change: Change | Incomparable


def compare(page: ReportPage, other: ReportPage) -> RunComparison:
    after, before = _shown_settings(page), _shown_settings(other)
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    settings = tuple(ChangedSetting(name, before.get(name), after.get(name)) for name in names)
    return RunComparison(other.run, settings, _change(page.throughput, other.throughput))


def _shown_settings(page: ReportPage) -> dict[str, str]:
    """Name → value, including the facts that are choices; hidden values count as equal."""
    values: dict[str, list[str]] = {}
    for fact in page.facts:
        if fact.label in ("Script", "Hosts", "Environment", "Stack", "Backend", "Started by", "Commit"):
            values.setdefault(fact.label, []).append(fact.value)
    for row in page.settings:
        shown = "(not shown)" if row.is_hidden else "(removed)" if row.value is None else row.value
        values.setdefault(row.name, []).append(f"{shown} on {row.where}" if row.where else shown)
    return {name: ", ".join(found) for name, found in values.items()}


def _change(after: TimeCurve | None, before: TimeCurve | None) -> Change | Incomparable:
    if after is None or before is None or not any(after.values) or not any(before.values):
        return "not-measured"
    if after.unit != before.unit:
        return "other-unit"
    now, then = _parts(after.values), _parts(before.values)
    if not now or not then:
        return "too-short"
    mean, old = statistics.fmean(now), statistics.fmean(then)
    bounds = _interval(now, then)
    if bounds is None:
        return Change(after.unit, old, mean, None, None)
    return Change(after.unit, old, mean, bounds[0] / old, bounds[1] / old)


def _parts(values: Sequence[float | None]) -> list[float]:
    known = [value for value in values if value is not None]
    with_steps = [place for place, value in enumerate(known) if value]
    if not with_steps:
        return []
    known = known[with_steps[0] : with_steps[-1] + 1]
    known = known[math.ceil(len(known) * _WARM_UP) :]
    size = max(1, len(known) // PARTS)
    return [statistics.fmean(known[at : at + size]) for at in range(0, len(known) - size + 1, size)]


def _interval(now: Sequence[float], then: Sequence[float]) -> tuple[float, float] | None:
    if min(len(now), len(then)) < MIN_PARTS:
        return None
    one, two = statistics.variance(now) / len(now), statistics.variance(then) / len(then)
    difference = statistics.fmean(now) - statistics.fmean(then)
    if one + two == 0:
        return difference, difference
    freedom = (one + two) ** 2 / (one**2 / (len(now) - 1) + two**2 / (len(then) - 1))
    t = _T_95[max((known for known in _T_95 if known <= freedom), default=4)]
    half = t * math.sqrt(one + two)
    return difference - half, difference + half
