"""Finds the extras: parts of ipexctl that the core works without, and never imports by name.

In comes the name of a command, or of a place where the core takes additions; out goes what an extra has for it. An
extra is an entry point of ipexctl's own distribution in the group `ipexctl.extras`; it names a value of class `Extra`
in a module `extension.py`, which imports nothing, so that the list of commands costs no command. The rule: nothing is
asked of other distributions, as what is installed beside ipexctl must not change it; without an extra its commands are
unknown, and what it adds is absent.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ipexctl

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ENTRY_POINTS: Final = "ipexctl.extras"


class CommandEntry(NamedTuple):
    """A command: its group and line in the help, and the module whose `NAME_command` it is."""

    name: str
    panel: str
    text: str
    module: str
    before: str = ""
    """The command of the core that it is listed before; without one it comes last in its group."""


class Extra(NamedTuple):
    """What the core learns of an extra."""

    commands: tuple[CommandEntry, ...]
    adds: Mapping[str, str] = {}
    """The place of the core → `module:name`; each place says in its own module what it is."""


@cache
def extras() -> tuple[Extra, ...]:
    found = []
    for value in _entry_points():
        module, _, name = value.partition(":")
        found.append(getattr(import_module(module), name))
    return tuple(found)


def _entry_points() -> Iterator[str]:
    """Those of the installed ipexctl, as `module:name`.

    pip's file is read as it stands: importlib.metadata, which knows other forms of installation, takes a fifth of the
    time of `ipexctl --help`.
    """
    for directory in sys.path:
        metadata = os.path.join(directory, f"ipexctl-{ipexctl.__version__}.dist-info")
        if os.path.isdir(metadata):
            yield from _read_entry_points(os.path.join(metadata, "entry_points.txt"))
            return
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        yield from (entry.value for entry in distribution("ipexctl").entry_points if entry.group == ENTRY_POINTS)
    except PackageNotFoundError:  # a checkout that nothing has installed
        return


def _read_entry_points(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return
    group = ""
    for line in lines:
        if line.startswith("["):
            group = line.strip("[] ")
        elif group == ENTRY_POINTS and "=" in line:
            yield line.partition("=")[2].strip()


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
