"""Finds the extras: parts of ipexctl that the core works without, and never imports by name.

In comes the name of a command, or of a place where the core takes additions; out goes what an extra has for it. An
extra is an entry point of ipexctl's own distribution in the group `ipexctl.extras`; it names a value of class `Extra`
in a module `extension.py`, which imports nothing, so that the list of commands costs no command. The rule: nothing is
asked of other distributions, as what is installed beside ipexctl must not change it; without an extra its commands are
unknown, and what it adds is absent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ENTRY_POINTS: Final = "ipexctl.extras"


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command: its group and line in the help, and the module whose `NAME_command` it is."""

    name: str
    panel: str
    text: str
    module: str
    before: str = ""
    """The command of the core that it is listed before; without one it comes last in its group."""


@dataclass(frozen=True, slots=True)
class Extra:
    """What the core learns of an extra."""

    commands: tuple[CommandEntry, ...]
    adds: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The place of the core → `module:name`; each place says in its own module what that is."""


@cache
def extras() -> tuple[Extra, ...]:
    from importlib.metadata import (  # 15 ms, which the commands of the core do not need
        PackageNotFoundError,
        distribution,
    )

    try:
        found = distribution("ipexctl").entry_points
    except PackageNotFoundError:  # a checkout that nothing has installed
        return ()
    return tuple(entry.load() for entry in found if entry.group == ENTRY_POINTS)


@cache
def commands_of_extras() -> Mapping[str, CommandEntry]:
    return {command.name: command for extra in extras() for command in extra.commands}


def addition(place: str) -> Any | None:
    """What an extra adds to that place of the core; None without the extra."""
    for extra in extras():
        if place in extra.adds:
            module, _, name = extra.adds[place].partition(":")
            return getattr(import_module(module), name)
    return None
