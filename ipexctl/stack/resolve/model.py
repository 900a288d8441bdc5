"""The values of stack resolution: what a call asks for, what indexes have, and the plan or refusal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.stack.catalog.table import StackSpec


@dataclass(frozen=True, slots=True)
class StackRequest:
    """Which stack; nothing given asks for the newest that fits."""

    torch: str | None = None
    """`2.8` or `2.8.0`."""
    stack: str | None = None
    """A row's name (`ipex-2.7`, `torch-2.13`), or a kind: `ipex`, `torch`."""
    ipex: str | None = None
    oneccl: str | None = None
    python: str | None = None
    """`3.11`."""
    require_oneccl: bool = False


@dataclass(frozen=True, slots=True)
class Sources:
    """Where wheels may come from, as the call says; pip's own settings are read on the machine that downloads."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    wheelhouse: str | None = None
    """A directory here, absolute, or a URL."""
    offline: bool = False


@dataclass(frozen=True, slots=True)
class EnvRequest:
    """An environment as asked for: what tells whether one that is there already will do."""

    stack: StackRequest
    extras: tuple[str, ...] = ()
    """Requirement lines: from --with, then from requirements files, includes resolved."""
    constraints: tuple[str, ...] = ()
    """Of requirements files."""

    def to_json(self) -> dict[str, Any]:
        asked = self.stack
        return {
            "torch": asked.torch,
            "stack": asked.stack,
            "ipex": asked.ipex,
            "oneccl": asked.oneccl,
            "python": asked.python,
            "require_oneccl": asked.require_oneccl,
            "extras": list(self.extras),
            "constraints": list(self.constraints),
        }

    @classmethod
    def from_json(cls, asked: dict[str, Any]) -> EnvRequest:
        """What an environment's record holds; one of an older version may lack some of it."""
        words = {name: asked.get(name) for name in ("torch", "stack", "ipex", "oneccl", "python")}
        stack = StackRequest(**words, require_oneccl=bool(asked.get("require_oneccl")))
        return cls(stack, tuple(asked.get("extras") or ()), tuple(asked.get("constraints") or ()))


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


Backend = Literal["ccl", "gloo"]


@dataclass(frozen=True, slots=True)
class StackPlan:
    """One stack for all hosts."""

    row: StackSpec
    torch: str
    """As pinned: `2.8.0+cpu` where an index has that, else `2.8.0`."""
    ipex: str | None
    oneccl: str | None
    python: str
    """`3.11`."""
    interpreters: Mapping[str, str] = field(hash=False)
    """Host name → path of that Python there."""
    requirements: tuple[str, ...]
    """What is installed by name: torch, IPEX, bindings, MPI, OpenMP. `impi-rt>=2021.14,<2021.19`."""
    constraints: tuple[str, ...]
    """What else must hold: `numpy<2`."""
    backend: Backend
    glibc: str
    """The oldest among the hosts, or the row's floor where none is known: wheels must run on it."""
    why: str
    """One sentence: why this row."""
    notes: tuple[str, ...] = ()
    """Sentences the user should read: IPEX is retired, gloo instead of ccl, a yanked wheel."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no plan."""

    reason: str
    """Names the hosts and the rule."""
    fix: str = ""
    hosts: tuple[str, ...] = ()
    """Those at fault; empty where it is the request itself or the indexes."""
    wrong_call: bool = False
    """The request names something that doesn't exist: exit code 2."""
