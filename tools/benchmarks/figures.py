"""Statistics of measured values: medians, ratios within rounds with their interval, and the slope of a line. Pure."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and the interval that holds the true one with that probability."""

    median: float
    low: float
    high: float
    coverage: float

    def __str__(self) -> str:
        return f"{self.median:.3f}x ({self.low:.3f} to {self.high:.3f})"

    def stays_below(self, limit: float) -> bool | None:
        """True or False if the whole interval says so, None if the limit lies inside it or there are too few rounds."""
        if self.coverage < CONFIDENCE:
            return None
        return True if self.high <= limit else False if self.low > limit else None


NO_DIFFERENCE = "no difference"


def compared(ratio_: Interval, same: Interval | None = None, *, is_gain: bool = False) -> str:
    """A ratio of times, or with `is_gain` of speeds, with its range; in words if the range of the rounds, or of the
    `same` program beside itself, holds it."""
    if ratio_.low <= 1 <= ratio_.high or (same is not None and same.low <= ratio_.median <= same.high):
        return NO_DIFFERENCE
    ends = (ratio_.low, ratio_.high) if not is_gain else (1 / ratio_.high, 1 / ratio_.low)
    return f"{1 / ratio_.median if is_gain else ratio_.median:.2f}x, {ends[0]:.2f} to {ends[1]:.2f}"


def ranged(values: Sequence[float], digits: int) -> str:
    """A median, and the least and the greatest value."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line through points."""

    start: float
    slope: float

    def at(self, x: float) -> float:
        return self.start + self.slope * x

    def reaches(self, limit: float) -> float:
        """The x where the line reaches the limit; infinite if it never does."""
        return (limit - self.start) / self.slope if self.slope > 0 else math.inf


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def ratios(values: Sequence[float], beside: Sequence[float]) -> list[float]:
    """The ratio within each round: what slowed down a whole round cancels out."""
    return [value / other for value, other in zip(values, beside, strict=True)]


def ratio(values: Sequence[float], beside: Sequence[float]) -> float:
    return median(ratios(values, beside))


def median_interval(values: Sequence[float]) -> Interval:
    """The narrowest interval between order statistics with a coverage of 95 %, by the sign test.

    It is exact for any continuous distribution. With fewer than six values no interval covers 95 %: then it is the
    smallest and the largest value, with the coverage that these have.
    """
    ordered = sorted(values)
    count = len(ordered)
    tails = list(accumulate(math.comb(count, few) / 2**count for few in range(count // 2)))
    cut = max((few for few, tail in enumerate(tails) if 1 - 2 * tail >= CONFIDENCE), default=0)
    coverage = 1 - 2 * tails[cut] if tails else 0.0
    return Interval(median(ordered), ordered[cut], ordered[count - 1 - cut], coverage)


def fit_line(points: Mapping[int, float]) -> Line:
    """The least-squares line; flat for a single point."""
    if len(points) < 2:
        return Line(next(iter(points.values()), 0.0), 0.0)
    slope, start = statistics.linear_regression(list(points), list(points.values()))
    return Line(start, slope)


def turn_rates(steps: Sequence[float], turns: Sequence[tuple[float, float]]) -> list[float]:
    """Steps a second in each turn of a program that is stopped between its turns.

    A step that lies in two turns counts in each by its share of the step's running time. After the last step that
    was seen, steps are taken to last as long as that one.
    """
    ends = list(accumulate(end - begin for begin, end in turns))
    starts = [end - (last - first) for end, (first, last) in zip(ends, turns, strict=True)]

    def running(time: float) -> float:
        """Seconds that the program has run by then."""
        index = bisect_right([begin for begin, _ in turns], time) - 1
        return 0.0 if index < 0 else min(starts[index] + time - turns[index][0], ends[index])

    times = [running(step) for step in steps]

    def done(time: float) -> float:
        """Steps done by that running time, in parts."""
        index = min(max(bisect_right(times, time), 1), len(times) - 1)
        return index - 1 + (time - times[index - 1]) / (times[index] - times[index - 1])

    return [(done(end) - done(start)) / (end - start) for start, end in zip(starts, ends, strict=True)]
