"""What a resolver's decision is: a StackPlan for all hosts, or a Refusal. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.stack.catalog.table import StackSpec

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
