"""Finds the rank that is slow now, for the run's status, while the ranks' windows arrive. Pure.

As in `ipexctl why`, a rank is slow if its own time is at least MORE_OWN of a step above the others' median for a
`Streak` of periods. A window counts only once all ranks have sent it; the window in which steps begin is left out.
"""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING, Collection, Mapping

from ipexctl.node.common.medians import medians_of_others
from ipexctl.node.common.records import SlowRank

if TYPE_CHECKING:
    from ipexctl.node.run.meter.rates import RankRates, Waiting

MORE_OWN = 0.05
"""Fraction of a step."""
MIN_STEPS = 30
ROW = 3
MOST_OPEN = 6
"""Windows that may be incomplete, because some ranks have not sent theirs."""


class Streak:
    """Begins with ROW periods in a row that count. One other period inside is skipped, two in a row end the streak."""

    def __init__(self) -> None:
        self.length = self._missed = 0

    @property
    def has_begun(self) -> bool:
        """True once ROW periods in a row have counted, until the streak ends."""
        return self.length >= ROW

    def add(self, *, counts: bool) -> None:
        """Take the next period. `counts`: whether the rank was slow in it."""
        self._missed = 0 if counts else self._missed + 1
        if counts:
            self.length += 1
        elif self._missed > 1 or not self.has_begun:
            self.length = 0


class SlowWatch:
    def __init__(self, hosts: Mapping[int, str], waiting: Waiting) -> None:
        self._hosts = hosts
        self._is_on = len(hosts) > 1 and waiting != "independent"
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget what was measured in the attempt before."""
        self._open: dict[int, dict[int, RankRates]] = {}
        self._last = -1
        self._has_begun = False
        self._totals: dict[int, list[float]] = {}
        self._steps = 0.0
        self._streaks: dict[int, Streak] = {}
        self._more: dict[int, float] = {}
        self.slow: SlowRank | None = None

    def add(self, rank: int, number: int, rates: RankRates, seconds: float) -> None:
        """Take a rank's window. One that is sent again after a reconnect is ignored, and so is a late one."""
        if not self._is_on or number <= self._last:
            return
        ranks = self._open.setdefault(number, {})
        ranks[rank] = rates
        if len(ranks) == len(self._hosts):
            self._take(number, ranks, seconds)
        elif len(self._open) > MOST_OPEN:
            del self._open[min(self._open)]

    def _take(self, number: int, ranks: Mapping[int, RankRates], seconds: float) -> None:
        self._open = {other: windows for other, windows in self._open.items() if other > number}
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
        self._streaks, self._more, self.slow = {}, {}, None

    def _find_slow(self, totals: Mapping[int, Collection[float]]) -> None:
        own = {rank: fmean(own_times) for rank, own_times in totals.items()}
        for rank, usual in medians_of_others(own).items():
            more = own[rank] - usual
            self._streaks.setdefault(rank, Streak()).add(counts=more >= MORE_OWN)
            if more >= MORE_OWN:
                self._more[rank] = more
        slow = [rank for rank, streak in self._streaks.items() if streak.has_begun]
        worst = max(slow, key=lambda rank: self._more[rank], default=None)
        self.slow = None if worst is None else SlowRank(worst, self._hosts[worst], 100 * self._more[worst])
