"""What the indexes in reach said they have. Values only; asking is `indexes`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Candidate:
    """One wheel somebody has."""

    project: str
    """As pip normalises it."""
    version: str
    """`2.8.0+cpu`."""
    filename: str
    source: str
    """The index or directory, as said to people: without credentials."""
    size: int | None = None
    yanked: bool = False
    requires_python: str | None = None
    url: str | None = None
    """Where it can be had; without credentials."""
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Silent:
    """An index or directory that was no help, and why."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Availability:
    """The answer of one machine's indexes, for the projects that were asked for."""

    candidates: Mapping[str, tuple[Candidate, ...]] = field(default_factory=dict, hash=False)
    """Project → its wheels; a project nobody has is there with none."""
    answered: tuple[str, ...] = ()
    """The sources that answered, in their order."""
    silent: tuple[Silent, ...] = ()

    def of(self, project: str) -> tuple[Candidate, ...]:
        return self.candidates.get(project, ())
