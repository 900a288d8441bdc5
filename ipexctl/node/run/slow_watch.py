"""Finds the rank that is slow now, for the run's status, while the ranks' windows arrive. Pure.

As in `ipexctl slow`, a rank is slow if its own time is at least MORE_OWN of a step above the others' median in ROW
periods in a row, until it is below in two in a row. A window counts only once all ranks have sent it; the window in
which steps begin is left out.
"""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING, Collection, Mapping

from ipexctl.node.common.medians import medians_of_others
from ipexctl.node.common.records import SlowRank

if TYPE_CHECKING:
    from ipexctl.node.run.rates import RankRates, Waiting

MORE_OWN = 0.05
"""Fraction of a step."""
MIN_STEPS = 30
ROW = 3
MOST_OPEN = 6
"""Windows that may be incomplete, because some ranks have not sent theirs."""


class SlowWatch:
    def __init__(self, hosts: Mapping[int, str], waiting: Waiting) -> None:
        self._hosts = hosts
        self._is_on = len(hosts) > 1 and waiting != "independent"
        self.begin_attempt()

    def begin_attempt(self) -> None:
        self._open: dict[int, dict[int, RankRates]] = {}
        self._last = -1
        self._has_begun = False
        self._totals: dict[int, list[float]] = {}
        self._steps = 0.0
        self._rows: dict[int, int] = {}
        self._missed: dict[int, int] = {}
        self._more: dict[int, float] = {}
        self.slow: SlowRank | None = None

    def add(self, rank: int, number: int, rates: RankRates, seconds: float) -> None:
        if not self._is_on or number <= self._last:
            return
        ranks = self._open.setdefault(number, {})
        ranks[rank] = rates
        if len(ranks) == len(self._hosts):
            self._take(number, ranks, seconds)
        elif len(self._open) > MOST_OPEN:
            del self._open[min(self._open)]

    def _take(self, number: int, ranks: Mapping[int, RankRates], seconds: float) -> None:
        self._open = {other: found for other, found in self._open.items() if other > number}
        if number != self._last + 1:
            self._forget()
        self._last = number
        steps = median(rates.steps_per_s for rates in ranks.values()) * seconds
        if not self._has_begun or steps <= 0:
            self._has_begun = self._has_begun or all(rates.steps_per_s > 0 for rates in ranks.values())
            return
        for rank, rates in ranks.items():
            if rates.own_time is not None:
                self._totals.setdefault(rank, []).append(rates.own_time)
        self._steps += steps
        if self._steps >= MIN_STEPS:
            self._find_slow(self._totals)
            self._totals, self._steps = {}, 0.0

    def _forget(self) -> None:
        self._totals, self._steps = {}, 0.0
        self._rows, self._missed, self._more, self.slow = {}, {}, {}, None

    def _find_slow(self, totals: Mapping[int, Collection[float]]) -> None:
        own = {rank: fmean(found) for rank, found in totals.items()}
        for rank, usual in medians_of_others(own).items():
            more = own[rank] - usual
            if more >= MORE_OWN:
                self._rows[rank] = self._rows.get(rank, 0) + 1
                self._missed[rank] = 0
                self._more[rank] = more
            elif rank in self._rows:
                self._missed[rank] = self._missed.get(rank, 0) + 1
                if self._missed[rank] > 1 or self._rows[rank] < ROW:
                    del self._rows[rank]
        slow = [rank for rank, row in self._rows.items() if row >= ROW]
        worst = max(slow, key=lambda rank: self._more[rank], default=None)
        self.slow = None if worst is None else SlowRank(worst, self._hosts[worst], 100 * self._more[worst])
