"""For each of several values, the median of the others: with few values, a slow one would raise a common median."""

from __future__ import annotations

from bisect import bisect_left
from typing import Mapping, TypeVar

Key = TypeVar("Key")


def medians_of_others(values: Mapping[Key, float]) -> dict[Key, float]:
    """Return for each key the median of all other values; empty with fewer than two."""
    if len(values) < 2:
        return {}
    ordered, others = sorted(values.values()), len(values) - 1
    medians = {}
    for key, value in values.items():
        # With a thousand values, sorting the others for each would be slow.
        own = bisect_left(ordered, value)
        high, low = (ordered[at + (at >= own)] for at in (others // 2, (others - 1) // 2))
        medians[key] = (low + high) / 2
    return medians
