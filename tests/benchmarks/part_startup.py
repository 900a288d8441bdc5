"""The cost of `--version`, `--help` and one press of Tab, as multiples of importing typer alone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from .figures import median, ratio
from .harness import Contender, in_turns, say, spend
from .report import Goal, Report
from .rig import ipexctl_argv

if TYPE_CHECKING:
    from .rig import Rig

BESIDE = 'python -c "import typer"'
VERSION, HELP, TAB = "ipexctl --version", "ipexctl --help", "completion of `ipexctl ex`"
AIMS = {VERSION: 1.3, HELP: 1.3, TAB: 1.3}
ROUNDS = 4
"""Rounds for each run asked for: these are short, and noise is not."""


def measure(rig: Rig) -> Report:
    say("startup")
    ours = ipexctl_argv()
    tab = {"_IPEXCTL_COMPLETE": "complete_bash", "COMP_WORDS": "ipexctl ex", "COMP_CWORD": "1"}
    by_name = {
        contender.name: contender
        for contender in (
            Contender(BESIDE, (sys.executable, "-c", "import typer")),
            Contender(VERSION, (*ours, "--version")),
            Contender(HELP, (*ours, "--help")),
            Contender(TAB, ours, tab),
        )
    }
    for contender in by_name.values():
        spend(contender, rig.env)
    figures = in_turns(list(by_name), rig.runs * ROUNDS, lambda name: spend(by_name[name], rig.env))
    walls = {name: [spent.wall for spent in spents] for name, spents in figures.items()}
    ratios = {name: ratio(wall, walls[BESIDE]) for name, wall in walls.items()}
    rows = tuple(
        (
            name,
            f"{median(walls[name]) * 1000:.0f}",
            f"{median([spent.cpu for spent in figures[name]]) * 1000:.0f}",
            f"{ratios[name]:.2f}x",
        )
        for name in by_name
    )
    goals = tuple(
        Goal(f"{name} ≤ {aim}x {BESIDE}", f"{ratios[name]:.2f}x", ratios[name] <= aim) for name, aim in AIMS.items()
    )
    return Report(rig.runs * ROUNDS, ("whole process", "wall ms", "CPU ms", "beside import typer"), rows, goals)
