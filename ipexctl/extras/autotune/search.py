"""Chooses the next trial, and judges what the trials so far have shown. Pure: no clock, no host, no file.

In come the space of candidates, limits, a seed, and the observations of all trials so far; out comes the next trial or
the end, with the state of every candidate. `SearchState.after` makes the state with one observation more. The state is
nothing but these values: the same observations lead to the same next trial, so a search that was interrupted goes on
from its list of trials.

The rules:

- The unit is a start, as two starts of one program differ for as long as they run. Starts come in blocks: the baseline
  and each candidate once, in random order; the ratio to the baseline of the same block is what counts.
- Groups are tried one after another; the winner of one is in the baseline of the next. After block 2 a candidate goes
  that is behind the best by more than max(5 %, 3 MAD); after each later block, the worse half (`race.py`).
- What is left of the time goes to a second look at the choices that are least certain: blocks of the best plan and of
  that plan with some of these choices reversed, each in half of the block (a factorial design). It takes their effects
  as ratios that multiply; large effects are certain by then, and stay as they are.
- A baseline that fails is started once more; if it fails again, the search is over.
- A candidate that fails, whose samples a step differ, or whose losses depart, goes at once and is never chosen.
- At the end the winner meets the plan of the call in 8 fresh blocks. It is adopted if the second smallest of the ratios
  is above 1.02: of two equal plans, 1 in 100 would pass.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final, Literal

from ipexctl.extras.autotune.comparison import changes_training
from ipexctl.extras.autotune.estimates import Estimate, estimate, expected_loss, standard_deviation
from ipexctl.extras.autotune.model import NO_CHANGE, Observation, SearchLimits, Settings, Space, Trial, merged
from ipexctl.extras.autotune.race import FIRST_BLOCKS, Excluded, Race

SECOND_LOOK: Final = "second look"
FINAL: Final = "final"
FINAL_BLOCKS: Final = 8
MIN_GAIN: Final = 1.02
BASELINE_STARTS: Final = 2
"""A failure of the baseline counts if a second start fails, too: one may be chance, or of the machine."""
MOST_AT_ONCE: Final = 8
"""Plans in a block of the second look, a power of 2."""
CERTAIN: Final = 0.0005
"""A choice whose expected loss is smaller is not looked at again: 0.05 %."""

CandidateState = Literal["waiting", "trying", "behind", "chosen", "failed", "changes-training", "adopted"]
Ending = Literal["baseline-failed", "no-candidates", "no-better-candidate", "no-gain-shown", "gain"]


@dataclass(frozen=True, slots=True)
class CandidateReport:
    """One row of the table."""

    group: str
    change: Settings
    """What it changes of the baseline of its group."""
    state: CandidateState
    estimate: Estimate | None = None
    reason: str = ""
    """Why it failed, or how it changes the training."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a search."""

    ending: Ending
    settings: Settings = NO_CHANGE
    """The fastest that was found; also without a gain that was shown."""
    estimate: Estimate | None = None
    """Of the final blocks."""
    reason: str = ""
    """Why a plan failed in the end."""


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """What is known after some trials."""

    next: Trial | None
    """None: the search is over."""
    verdict: Verdict | None
    candidates: tuple[CandidateReport, ...]
    best: Settings
    """The plan that is ahead so far."""
    starts: int
    seconds: float
    is_cut: bool
    """Whether the limits kept a candidate from being compared."""


@dataclass(frozen=True, slots=True)
class SearchState:
    """A search after some observations."""

    space: Space
    limits: SearchLimits
    seed: int
    observations: tuple[Observation, ...] = ()

    def after(self, observation: Observation) -> SearchState:
        return replace(self, observations=(*self.observations, observation))

    def progress(self) -> SearchProgress:
        return _Replay(self.space, self.limits, self.seed).replay(self.observations)


def reversals(choices: int, starts: float) -> list[list[bool]]:
    """The plans of a block of the second look: which choices are reversed in each; in the first, none is.

    Rows of a Hadamard matrix: each choice is reversed in half of the plans, whatever the others are, so that every
    start says something about all of them. Fewer choices than asked for where there is no time for so many plans.
    """
    size = 1
    while size <= choices and 2 * size <= min(starts, MOST_AT_ONCE):
        size *= 2
    columns = range(1, min(choices, size - 1) + 1)
    return [[bin(row & column).count("1") % 2 == 1 for column in columns] for row in range(size)]


def effect(values: Sequence[float | Excluded], is_reversed: Sequence[bool]) -> tuple[float | Excluded, float]:
    """What reversing one choice does, and how many pairs of starts that is worth.

    A plan that failed is left out: another choice may be the reason. If all with the reversed one failed, it is.
    """
    pairs = list(zip(values, is_reversed, strict=True))
    kept = [value for value, sign in pairs if not sign and not isinstance(value, Excluded)]
    changed = [value for value, sign in pairs if sign and not isinstance(value, Excluded)]
    if not changed:
        return next(value for value, sign in pairs if sign and isinstance(value, Excluded)), 1.0
    return fmean(changed) - fmean(kept), 2 / (1 / len(kept) + 1 / len(changed))


class _PlanFailed(Exception):
    """The baseline of a block failed: nothing can be compared."""

    def __init__(self, settings: Settings, reason: str) -> None:
        super().__init__(reason)
        self.verdict = Verdict("baseline-failed", settings, reason=reason)


_Start = Generator[Trial, Observation, Observation]
_Block = Generator[Trial, Observation, dict[Settings, float | Excluded]]


class _Replay:
    """One pass over the observations."""

    def __init__(self, space: Space, limits: SearchLimits, seed: int) -> None:
        self._space, self._limits, self._seed = space, limits, seed
        self._spent, self._starts = 0.0, 0
        self._first_plan: list[Observation] = []
        """Observations of the plan of the call: what the training is compared with."""
        self._races: dict[str, Race] = {}
        self._final: tuple[CandidateReport, ...] = ()
        self._is_cut = False

    def replay(self, observations: Sequence[Observation]) -> SearchProgress:
        steps = self._run()
        trial: Trial | None = None
        verdict = None
        try:
            trial = next(steps)
            for observation in observations:
                trial = steps.send(observation)
        except StopIteration as end:
            trial, verdict = None, end.value
        rows = (*self._rows(), *self._final)
        return SearchProgress(trial, verdict, rows, self._plan(), self._starts, self._spent, self._is_cut)

    def _rows(self) -> Iterable[CandidateReport]:
        for race in self._races.values():
            for change in race.candidates:
                values = [found.value for found in race.measured.get(change, ())]
                reason = race.excluded.get(change)
                state: CandidateState = "waiting" if not values else "trying"
                if reason is not None:
                    state = reason.kind
                elif change == race.choice:
                    state = "chosen"
                elif values and (race.is_over or change not in race.alive):
                    state = "behind"
                row_reason = reason.text if reason else ""
                yield CandidateReport(race.group, change, state, estimate(values) if values else None, row_reason)

    def _plan(self, reverse: Sequence[Race] = ()) -> Settings:
        """The plan with the choices so far, or with some of them reversed."""
        plan = NO_CHANGE
        for race in self._races.values():
            choice = race.choice
            if race in reverse:
                choice = race.leader if choice is None else None
            plan = merged(plan, choice or NO_CHANGE)
        return plan

    def _run(self) -> Generator[Trial, Observation, Verdict]:
        try:
            for index, group in enumerate(self._space.groups):
                race = Race(group, self._space.candidates(group, self._plan()))
                if race.candidates:
                    yield from self._race(race, len(self._space.groups) - index)
            if not self._races:
                return Verdict("no-candidates")
            yield from self._look_again()
            if self._plan() == NO_CHANGE:
                return Verdict("no-better-candidate")
            return (yield from self._decide(self._plan()))
        except _PlanFailed as failure:
            return failure.verdict

    def _race(self, race: Race, groups_left: int) -> Generator[Trial, Observation, None]:
        base = self._plan()
        self._races[race.group] = race
        share, begun = self._starts_left() / groups_left, self._starts
        while not race.is_over:
            size = len(race.alive) + 1
            is_over_share = race.blocks >= FIRST_BLOCKS and self._starts - begun + size > share
            if size > self._starts_left() or is_over_share:
                self._is_cut = self._is_cut or race.blocks < FIRST_BLOCKS
                break
            plans = {merged(base, change): change for change in race.alive}
            found = yield from self._block(race.group, race.blocks + 1, base, tuple(plans))
            race.add_block({change: found[plan] for plan, change in plans.items()})
        race.choose()

    def _look_again(self) -> Generator[Trial, Observation, None]:
        """Blocks of the best plan and of plans with some choices reversed, while there is time."""
        block = 0
        while True:
            noise = standard_deviation(values for race in self._races.values() for values in race.measured.values())
            losses = {
                group: expected_loss(race.measured[race.leader], noise)
                for group, race in self._races.items()
                if race.leader is not None and race.blocks >= FIRST_BLOCKS
            }
            open_groups = sorted((group for group in losses if losses[group] > CERTAIN), key=lambda name: -losses[name])
            rows = reversals(len(open_groups), self._starts_left())
            races = [self._races[group] for group in open_groups[: len(rows) - 1]]
            plans = [self._plan([race for race, sign in zip(races, row, strict=True) if sign]) for row in rows]
            others = tuple(dict.fromkeys(plan for plan in plans if plan != self._plan()))
            if not others:
                return
            block += 1
            found = yield from self._block(SECOND_LOOK, block, self._plan(), others)
            values = [found.get(plan, 0.0) for plan in plans]
            for column, race in enumerate(races):
                race.add_reversed(*effect(values, [row[column] for row in rows]))

    def _decide(self, winner: Settings) -> Generator[Trial, Observation, Verdict]:
        """The final blocks."""
        log_ratios: list[float] = []
        for block in range(1, FINAL_BLOCKS + 1):
            found = yield from self._block(FINAL, block, NO_CHANGE, (winner,))
            value = found[winner]
            if isinstance(value, Excluded):
                self._final = (CandidateReport(FINAL, winner, value.kind, reason=value.text),)
                return Verdict("no-gain-shown", winner, reason=value.text)
            log_ratios.append(value)
            self._final = (CandidateReport(FINAL, winner, "trying", estimate(log_ratios)),)
        is_gain = sorted(log_ratios)[1] > math.log(MIN_GAIN)
        self._final = (replace(self._final[0], state="adopted" if is_gain else "behind"),)
        return Verdict("gain" if is_gain else "no-gain-shown", winner, estimate(log_ratios))

    def _block(self, group: str, block: int, base: Settings, plans: tuple[Settings, ...]) -> _Block:
        """Start the baseline and each plan once; returns the log ratio of each plan, or why it is excluded."""
        order = [base, *plans]
        random.Random(f"{self._seed}/{group}/{block}").shuffle(order)  # noqa: S311
        found: dict[Settings, Observation] = {}
        for settings in order:
            observation = found[settings] = yield from self._start(group, block, settings, base)
            if settings == NO_CHANGE:
                self._first_plan.append(observation)
        return {plan: self._compare(found[plan], found[base]) for plan in plans}

    def _start(self, group: str, block: int, settings: Settings, base: Settings) -> _Start:
        """Start a plan; the baseline once more if it fails, as nothing can be compared without it."""
        trial = Trial(group, block, settings, is_baseline=settings == base)
        for _ in range(BASELINE_STARTS if trial.is_baseline else 1):
            observation = yield trial
            self._starts += 1
            self._spent += observation.seconds
            if observation.rate is not None:
                return observation
        if trial.is_baseline:
            raise _PlanFailed(base, observation.failure)
        return observation

    def _compare(self, found: Observation, baseline: Observation) -> float | Excluded:
        if found.rate is None or not baseline.rate:
            return Excluded("failed", found.failure)
        if text := changes_training(found, baseline, self._first_plan):
            return Excluded("changes-training", text)
        return math.log(found.rate / baseline.rate)

    def _starts_left(self) -> float:
        """By the limits, at the mean length of the trials so far."""
        left = float("inf") if self._limits.starts is None else float(self._limits.starts - self._starts)
        if self._starts and self._spent:
            left = min(left, (self._limits.seconds - self._spent) / (self._spent / self._starts))
        return left
