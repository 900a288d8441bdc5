"""Comparing each of many with the others: the rule that `doctor --smoke` and `slow` share. Pure.

In: a value for each host or rank; out: the median of all others for each. The rule: one is never compared with itself,
so that among few the slow one does not hide itself.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Mapping, TypeVar

Key = TypeVar("Key")


def medians_of_others(values: Mapping[Key, float]) -> dict[Key, float]:
    """For each the median of all others; nothing for one alone."""
    if len(values) < 2:
        return {}
    ordered, others = sorted(values.values()), len(values) - 1
    medians = {}
    for key, value in values.items():
        # Without sorting the others anew for each of a thousand.
        own = bisect_left(ordered, value)
        high, low = (ordered[at + (at >= own)] for at in (others // 2, (others - 1) // 2))
        medians[key] = (low + high) / 2
    return medians
