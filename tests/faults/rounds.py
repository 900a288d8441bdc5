"""The rounds of a seed: which case each one plays, and a line about what came of it."""

from __future__ import annotations

import random
import subprocess
import time
import traceback
from dataclasses import asdict, dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .fault_cases import FAULT_CASES, FaultCase
from .play import FaultRound, WrongReport
from .random_cases import RANDOM_CASES
from .transfers import TRANSFER_CASES, TransferCase, TransferRound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .stage import FaultLab

Case = FaultCase | TransferCase
Chosen = TypeVar("Chosen")
_UNREADABLE: Final = (OSError, LookupError, StopIteration, ValueError, subprocess.SubprocessError)


@dataclass(frozen=True)
class Played:
    """A round that was played; `wrong` says what was wrong, if anything was."""

    number: int
    case: str
    notes: str
    wrong: str
    seconds: float

    @property
    def line(self) -> str:
        result = f"WRONG\n    {self.wrong}" if self.wrong else "right"
        return f"{self.number:3} {self.seconds:6.1f} s  {self.case} ({self.notes}): {result}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def all_cases(only: str, *, has_memory: bool) -> list[Case]:
    """The cases whose name has this text. Some need a memory cgroup of version 1."""
    cases: list[Case] = [*FAULT_CASES, *RANDOM_CASES, *TRANSFER_CASES]
    found = [case for case in cases if only in case.name]
    return [case for case in found if has_memory or not (isinstance(case, FaultCase) and case.needs_memory)]


def choose(cases: Sequence[Chosen], seed: int, number: int) -> Chosen:
    """The case of a round, counted from 1; all cases come before any comes again."""
    for turn in count():
        order = random.Random(f"{seed}/{turn}").sample(cases, len(cases))
        if number <= len(order):
            return order[number - 1]
        number -= len(order)
    raise AssertionError


def play_round(stage: FaultLab, case: Case, seed: int, number: int) -> Played:
    chance = random.Random(f"{seed}/{number}/{case.name}")
    began = time.monotonic()
    if isinstance(case, TransferCase):
        played: FaultRound | TransferRound = TransferRound(stage, case, chance)
    else:
        played = FaultRound(stage, case, chance, is_thorough=True, ppn=chance.choice([1, 2]))
    wrong = ""
    try:
        played.play()
    except WrongReport as error:
        wrong = f"{getattr(played, 'run', '')}: {error}"
    except _UNREADABLE as error:  # a file or a field that should be there
        wrong = f"{getattr(played, 'run', '')}: {traceback.format_exc(limit=-3)}: {error}"
    return Played(number, case.name, "; ".join(played.notes), wrong, round(time.monotonic() - began, 1))


def show(played: Sequence[Played]) -> str:
    wrong = [each for each in played if each.wrong]
    seconds = sum(each.seconds for each in played)
    lines = [f"\n{len(played)} rounds of {len({each.case for each in played})} cases in {seconds:.0f} s"]
    lines += [f"wrong: round {each.number}, {each.case}: {each.wrong.splitlines()[0][:200]}" for each in wrong]
    return "\n".join([*lines, f"{len(wrong)} wrong" if wrong else "all right"])
