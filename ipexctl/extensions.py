"""Finds the extras: parts of ipexctl that the core never imports by name. An extra is an entry point of ipexctl's own
distribution in the group `ipexctl.extras`: a value of class `Extra` in a module that imports nothing. Other packages'
entry points are ignored, because a package installed alongside must not change ipexctl.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

import ipexctl

ENTRY_POINTS: Final = "ipexctl.extras"


class CommandEntry(NamedTuple):
    name: str
    text: str
    module: str


class Extra(NamedTuple):
    commands: tuple[CommandEntry, ...]
    adds: Mapping[str, str] = {}
    """Extension point of the core → `module:name`."""


@cache
def extras() -> tuple[Extra, ...]:
    found = []
    for value in _entry_points():
        module, _, name = value.partition(":")
        found.append(getattr(import_module(module), name))
    return tuple(found)


def _entry_points() -> Iterator[str]:
    """`module:name`. Read from pip's file: importlib.metadata would take a fifth of the time of `ipexctl --help`."""
    for directory in sys.path:
        metadata = os.path.join(directory, f"ipexctl-{ipexctl.__version__}.dist-info")
        if os.path.isdir(metadata):
            yield from _read_entry_points(os.path.join(metadata, "entry_points.txt"))
            return
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        yield from (entry.value for entry in distribution("ipexctl").entry_points if entry.group == ENTRY_POINTS)
    except PackageNotFoundError:  # a checkout that is not installed
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
    for extra in extras():
        if place in extra.adds:
            module, _, name = extra.adds[place].partition(":")
            return getattr(import_module(module), name)
    return None
