"""The candidates of one group, from block to block: which go, which one leads, and whether it is chosen. Pure.

In come the log ratios of a block, or why a candidate is excluded; out comes who is alive, the leader, and the choice.
The rules: in the first 2 blocks nobody goes for being slow; after block 2 all go that are behind the best, which may be
the baseline, by more than max(5 %, 3 MAD); after each later block the worse half. The leader is chosen if it is ahead
of the baseline. A wrong choice costs what it is behind, and the final blocks show whether all choices together gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from ipexctl.extras.autotune.estimates import LogRatio, median_distance, weighted_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.extras.autotune.model import Settings

FIRST_BLOCKS: Final = 2
BEHIND: Final = 0.05
CLEAR: Final = 0.15
"""The lead that is enough where the budget ends after one block: the final blocks show whether it is one."""
MEDIAN_DISTANCES: Final = 3.0


class Excluded(NamedTuple):
    """Why a candidate can't be chosen."""

    kind: Literal["failed", "changes-training"]
    text: str


class Race:
    """One group."""

    def __init__(self, group: str, candidates: tuple[Settings, ...]) -> None:
        self.group, self.candidates = group, candidates
        self.alive = list(candidates)
        self.measured: dict[Settings, list[LogRatio]] = {}
        self.excluded: dict[Settings, Excluded] = {}
        self.blocks = 0
        self.leader: Settings | None = None
        """The one that the choice is about; None if all are far behind the baseline, or excluded."""
        self.choice: Settings | None = None
        """The leader, if it is in the plan."""

    @property
    def is_over(self) -> bool:
        """Whether one is left at most, after enough blocks."""
        return not self.alive or (self.blocks >= FIRST_BLOCKS and len(self.alive) == 1)

    def add_block(self, found: Mapping[Settings, float | Excluded]) -> None:
        self.blocks += 1
        for change, value in found.items():
            if isinstance(value, Excluded):
                self._exclude(change, value)
            else:
                self.measured.setdefault(change, []).append(LogRatio(value))
        for change in self._slow():
            self.alive.remove(change)

    def add_reversed(self, value: float | Excluded, weight: float) -> None:
        """From a block of the second look: plans without the choice, or with the leader that was not chosen."""
        assert self.leader is not None
        if isinstance(value, Excluded):
            if self.choice is None:
                self._exclude(self.leader, value)
            self.leader = None  # without the choice, the script fails: it stays
            return
        self.measured[self.leader].append(LogRatio(value if self.choice is None else -value, weight))
        self.choose()

    def choose(self) -> None:
        """Called when the group has been raced, and after each further block."""
        measured = [change for change in self.alive if change in self.measured]
        self.leader = max(measured, key=self._mean, default=None)
        if self.leader is not None and self.blocks < FIRST_BLOCKS and self._mean(self.leader) < CLEAR:
            self.leader = None
        self.choice = self.leader if self.leader is not None and self._mean(self.leader) > 0 else None

    def _exclude(self, change: Settings, reason: Excluded) -> None:
        self.alive.remove(change)
        self.excluded[change] = reason

    def _mean(self, change: Settings) -> float:
        return weighted_mean(self.measured[change])

    def _slow(self) -> list[Settings]:
        ordered = sorted(self.alive, key=self._mean, reverse=True)
        if self.blocks < FIRST_BLOCKS or not ordered:
            return []
        if self.blocks > FIRST_BLOCKS:
            return ordered[(len(ordered) + 1) // 2 :]
        limit = max(
            BEHIND,
            MEDIAN_DISTANCES * median_distance([found.value for found in series] for series in self.measured.values()),
        )
        lead = max(0.0, self._mean(ordered[0]))
        return [change for change in ordered if self._mean(change) < lead - limit]
