"""Says what keeps a host busy when a limit is reached: load, memory, then programs that wait for a disk. Only what the
host measured is said.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ipexctl.remote.command import Command
from ipexctl.text import printable

BURDEN: Final = Command.scripts(Path(__file__).with_name("burden.sh"), arguments=[], label="the load")
_FIRST: Final = re.compile(r"(\d{1,6}(?:\.\d+)?) (\d{1,5}) (\d{1,3})")
_PROGRAMS: Final = re.compile(r"^(\d{1,6}) ([RD]) +(\S{1,32}) +(.{1,15})$", re.MULTILINE)
_LITTLE: Final = 5
"""Percent of the memory."""


def describe_burden(text: str) -> str:
    """The answer of `BURDEN` as a clause, empty for a host that is not busy. Pure."""
    found = _FIRST.match(text)
    if found is None:
        return ""
    load, cores, memory = float(found[1]), int(found[2]), int(found[3])
    programs = {
        state: ", ".join(f"{count} {printable(name)} of {printable(user)}" for count, kind, user, name in rows)
        for state in "RD"
        if (rows := [row for row in _PROGRAMS.findall(text) if row[1] == state])
    }
    parts = []
    if load >= 2 * cores:
        computing = f" ({programs['R']} compute now)" if "R" in programs else ""
        parts.append(f"its load is {load:.0f} on {cores} core{'s' * (cores != 1)}{computing}")
    if memory < _LITTLE:
        parts.append(f"{memory} % of its memory is left")
    if "D" in programs:
        parts.append(f"{programs['D']} wait for a disk or file server")
    return ", ".join(parts)
