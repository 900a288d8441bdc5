"""Numbers from log ratios of steps a second: spread, expected loss, and the interval that a table shows. Pure."""

from __future__ import annotations

import math
from statistics import NormalDist, median
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FEWEST_FOR_SECOND: Final = 6
"""Ratios, from which on the interval leaves the smallest and the largest out: of 8, it then has the median in 93 % of
cases."""
_NORMAL: Final = NormalDist()


class LogRatio(NamedTuple):
    """What a block has shown of a candidate."""

    value: float
    weight: float = 1.0
    """The number of pairs of starts that are as exact."""


class Estimate(NamedTuple):
    """A ratio to the baseline with its interval."""

    ratio: float
    low: float
    high: float
    blocks: int


def estimate(log_ratios: Sequence[float]) -> Estimate:
    """The median with the second smallest and second largest value; of few values the smallest and largest."""
    ordered = sorted(log_ratios)
    left_out = 1 if len(ordered) >= FEWEST_FOR_SECOND else 0
    low, high = ordered[left_out], ordered[-1 - left_out]
    return Estimate(math.exp(median(ordered)), math.exp(low), math.exp(high), len(ordered))


def median_distance(series: Iterable[Sequence[float]]) -> float:
    """The median of the distances from the median of each series (MAD), of all series together."""
    distances = [abs(value - median(values)) for values in series if len(values) > 1 for value in values]
    return median(distances) if distances else 0.0


def weighted_mean(values: Sequence[LogRatio]) -> float:
    return sum(each.weight * each.value for each in values) / sum(each.weight for each in values)


def standard_deviation(series: Iterable[Sequence[LogRatio]]) -> float:
    """Of the log ratio of a pair of starts around the mean of its series, from all series together."""
    squares, degrees = 0.0, 0
    for values in series:
        if len(values) > 1:
            mean = weighted_mean(values)
            squares += sum(each.weight * (each.value - mean) ** 2 for each in values)
            degrees += len(values) - 1
    return math.sqrt(squares / degrees) if degrees else 0.0


def expected_loss(values: Sequence[LogRatio], deviation: float) -> float:
    """What choosing by the sign of the mean is expected to lose, as the mean is not known exactly."""
    error = deviation / math.sqrt(sum(each.weight for each in values))
    mean = abs(weighted_mean(values))
    if not error:
        return 0.0
    return error * _NORMAL.pdf(mean / error) - mean * _NORMAL.cdf(-mean / error)
