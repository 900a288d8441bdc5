"""Decides a lab's condition, and which labs `down` removes. Pure.

A complete lab stays until named, unless it is the only one; a temporary lab belongs to the process that made it.
Without a name, `down` removes remains only if their maker is known to be gone (pid and start time).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ipexctl.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.extras.lab.state import Lab

Condition = Literal["up", "busy", "cut-short", "abandoned", "unreadable"]
"""busy: `up` or `down` is at work; cut-short: that process did not finish; abandoned: temporary, its process is gone;
unreadable: no record of this version."""


@dataclass(frozen=True, slots=True)
class FoundLab:
    name: str
    lab: Lab | None
    maker_is_gone: bool = False
    """False if unknown: the record names no process, or another machine's."""

    @property
    def condition(self) -> Condition:
        if self.lab is None:
            return "unreadable"
        if not self.lab.ready:
            return "cut-short" if self.maker_is_gone or self.lab.maker is None else "busy"
        return "abandoned" if self.lab.temporary and self.maker_is_gone else "up"

    @property
    def is_remains(self) -> bool:
        """True if it is known that nobody needs it."""
        return self.maker_is_gone and self.condition in ("cut-short", "abandoned")

    @property
    def holder(self) -> int | None:
        if self.lab is None or self.lab.maker is None or self.maker_is_gone:
            return None
        return self.lab.maker.pid if self.lab.temporary or not self.lab.ready else None


def labs_to_remove(found: Sequence[FoundLab], name: str | None, *, remove_all: bool) -> tuple[str, ...]:
    names = sorted(lab.name for lab in found)
    if name is not None:
        if remove_all:
            raise UserError("a lab's name and --all exclude each other", fix=f"ipexctl lab down {name}")
        if name not in names:
            listed = ", ".join(names) or "none"
            raise UserError(f"there is no lab {name!r} on this machine (there are: {listed})", fix="ipexctl lab list")
        return (name,)
    others = sorted((lab for lab in found if not lab.is_remains), key=lambda lab: lab.name)
    if remove_all or not others:
        return tuple(names)
    commands = "; ".join(f"ipexctl lab down {lab.name}" for lab in others)
    if len(others) > 1:
        listed = ", ".join(lab.name for lab in others)
        raise UserError(f"there are {len(others)} labs on this machine: {listed}", fix=f"one of: {commands}")
    if others[0].holder is not None:
        raise UserError(
            f"the lab {others[0].name} belongs to process {others[0].holder}, which still runs",
            fix=f"wait until it has ended, or name the lab: {commands}",
        )
    return tuple(names)
