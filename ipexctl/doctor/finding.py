"""One thing the doctor has to say: stable id, how bad it is, what it means for training, what to type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

Level = Literal["ok", "info", "warn", "fail"]
LEVELS: Final[tuple[Level, ...]] = ("ok", "info", "warn", "fail")


@dataclass(frozen=True, slots=True)
class Finding:
    """`id` is dotted and never changes its meaning; `docs/findings.md` has a paragraph for each."""

    id: str
    level: Level
    message: str
    """What is so, and what it means for training, without the host's name."""
    fix: str = ""
    """The command or the change that mends it."""
    hosts: tuple[str, ...] = ()


def worst(findings: Iterable[Finding]) -> Level:
    """The level that decides: `ok` where nothing was found."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")
