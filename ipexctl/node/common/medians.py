"""Compares each of many with the median of the others, so that a slow one among few can't hide itself. Pure."""

from __future__ import annotations

from bisect import bisect_left
from typing import Mapping, TypeVar

Key = TypeVar("Key")


def medians_of_others(values: Mapping[Key, float]) -> dict[Key, float]:
    if len(values) < 2:
        return {}
    ordered, others = sorted(values.values()), len(values) - 1
    medians = {}
    for key, value in values.items():
        # Avoids sorting the others for each of a thousand.
        own = bisect_left(ordered, value)
        high, low = (ordered[at + (at >= own)] for at in (others // 2, (others - 1) // 2))
        medians[key] = (low + high) / 2
    return medians
