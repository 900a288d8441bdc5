"""The values of a search: settings, trials, observations. Frozen, and without any rule.

`Settings` are what a candidate changes: pairs of a name and a value, in the order of their names. A name is an option
of `ipexctl run` (`bind`, `omp`) or a variable of the ranks (`x.KMP_BLOCKTIME`, for `-x KMP_BLOCKTIME=…`); empty
settings are the plan of the call itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Settings = tuple[tuple[str, str], ...]
NO_CHANGE: Final[Settings] = ()


def settings_of(values: Mapping[str, str]) -> Settings:
    return tuple(sorted(values.items()))


def merged(base: Settings, change: Settings) -> Settings:
    return settings_of({**dict(base), **dict(change)})


@dataclass(frozen=True, slots=True)
class Trial:
    """One start of the script that the search asks for."""

    group: str
    block: int
    """From 1 on in each group."""
    settings: Settings
    is_baseline: bool
    """Whether it is the one that the others of its block are compared with."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What came of a trial."""

    seconds: float
    """From the beginning of its start to the end of its clean-up."""
    rate: float | None = None
    """Steps a second; None: it failed."""
    samples_per_step: float | None = None
    """None: not known."""
    losses: tuple[tuple[str, float], ...] = ()
    """The losses that rank 0 has printed, each with the name of its step."""
    failure: str = ""
    """Why there is no rate."""


@dataclass(frozen=True, slots=True)
class Space:
    """The groups in the order in which they are tried, and the candidates of each.

    Candidates depend on what was adopted before: threads on the binding, a variable on the runtime that reads it.
    """

    groups: tuple[str, ...]
    candidates: Callable[[str, Settings], tuple[Settings, ...]]


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """How long a search may take. The final blocks come on top."""

    seconds: float
    starts: int | None = None
