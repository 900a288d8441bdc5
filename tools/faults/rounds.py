"""Rounds of all kinds: cases, which of them a seed plays, how one is played, and what is printed of it.

In come a kind's cases, a seed and a number; out goes a `Played` with a line. The rule: the seed and the number decide
the case and each random choice of its round, so both repeat it; only the speed of the hosts may differ.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from .breaks import Break

Chosen = TypeVar("Chosen")
CONTROLLERS: Final = Path("/sys/fs/cgroup")
_UNREADABLE: Final = (OSError, LookupError, StopIteration, ValueError, subprocess.SubprocessError)


@dataclass(frozen=True)
class Case:
    """A story: `play` injects the fault into the round that it gets; what it returns depends on the kind."""

    name: str
    play: Callable[[Any], Any]
    needs: str = field(default="", kw_only=True)
    """A controller of cgroups of version 1 that this machine must have."""

    @property
    def is_possible(self) -> bool:
        return not self.needs or os.access(CONTROLLERS / self.needs / "cgroup.procs", os.W_OK)


@dataclass
class Round(ABC):
    """A case that is played once."""

    stage: Any
    case: Any
    chance: random.Random
    notes: list[str] = field(default_factory=list, kw_only=True)
    """The moment and the options of this round, for its line."""
    run: str = field(default="", kw_only=True)
    excuse: str = field(default="", kw_only=True)
    """Why a wrong report decides nothing: this machine was busy."""
    details: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """For `--json`."""

    @abstractmethod
    def play(self) -> None:
        """Play the case; raises an AssertionError if what is reported or left differs from what has happened."""

    @abstractmethod
    def clear(self) -> None:
        """End what a wrong round has left."""

    def pause(self, longest: float) -> None:
        """Wait for the moment of the fault."""
        seconds = self.chance.uniform(0, longest)
        self.notes.append(f"at +{seconds:.2f} s")
        time.sleep(seconds)


@dataclass(frozen=True)
class Kind:
    """What is played, where and by which rounds."""

    help: str
    cases: Sequence[Case]
    stage: Callable[[Path], AbstractContextManager[Any]]
    """The hosts, in a lab that is removed at the end; the output of calls is in that directory."""
    new_round: Callable[[Any, Any, random.Random], Round]
    breaks: tuple[Break, ...] = ()
    goal: float = 1.0
    """The part of a case's rounds that must be right."""


@dataclass(frozen=True)
class Played:
    """A round that was played; `wrong` says what was wrong, if anything was."""

    number: int
    case: str
    notes: str
    wrong: str
    excuse: str
    seconds: float
    details: dict[str, Any]

    @property
    def line(self) -> str:
        result = f"{self.excuse or 'WRONG'}\n    {self.wrong}" if self.wrong else "right"
        return f"{self.number:3} {self.seconds:6.1f} s  {self.case} ({self.notes}): {result}"


def choose(cases: Sequence[Chosen], seed: int, number: int) -> Chosen:
    """The case of a round, counted from 1; all cases come before any comes again."""
    for turn in count():
        order = random.Random(f"{seed}/{turn}").sample(cases, len(cases))
        if number <= len(order):
            return order[number - 1]
        number -= len(order)
    raise AssertionError


def chance_of(case: Case, seed: int, number: int) -> random.Random:
    return random.Random(f"{seed}/{number}/{case.name}")


def play_round(played: Round, number: int) -> Played:
    began, wrong = time.monotonic(), ""
    try:
        try:
            played.play()
        finally:
            played.clear()
    except (AssertionError, *_UNREADABLE) as error:
        is_judged = isinstance(error, AssertionError) and str(error)
        wrong = f"{played.run}: {error if is_judged else traceback.format_exc(limit=-3)}"
    seconds = round(time.monotonic() - began, 1)
    return Played(number, played.case.name, "; ".join(played.notes), wrong, played.excuse, seconds, played.details)


def show(played: Sequence[Played], goal: float) -> tuple[str, bool]:
    """The end of the output, and whether enough was right of each case. Rounds with an excuse decide nothing."""
    counted = Counter(each.case for each in played if not (each.wrong and each.excuse))
    wrong = [each for each in played if each.wrong]
    bad = Counter(each.case for each in wrong if not each.excuse)
    lines = [f"\n{len(played)} rounds of {len({each.case for each in played})} cases"]
    lines += [f"right {counted[case] - bad[case]} of {counted[case]}: {case}" for case in bad]
    lines += [f"{each.excuse or 'wrong'}: round {each.number}, {each.case}: {each.wrong[:200]}" for each in wrong]
    is_well = all(number <= (1 - goal) * counted[case] for case, number in bad.items())
    lines.append(f"wrong: {sum(bad.values())} of {sum(counted.values())} rounds that count")
    return "\n".join(lines), is_well
