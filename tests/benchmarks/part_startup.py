"""The cost of `--version`, `--help` and one press of Tab, as multiples of importing typer alone."""

from __future__ import annotations

import sys
from dataclasses import replace

from .figures import median, ratio
from .harness import Contender, say, spend, spend_in_turns
from .report import Goal, Report
from .rig import Rig, ipexctl

BESIDE = 'python -c "import typer"'
VERSION, HELP, TAB = "ipexctl --version", "ipexctl --help", "completion of `ipexctl ex`"
AIMS = {VERSION: 1.3, HELP: 1.3, TAB: 1.3}
ROUNDS = 4
"""Rounds for each run asked for: these are short, and noise is not."""


def measure(rig: Rig) -> Report:
    say("startup")
    tab = {"_IPEXCTL_COMPLETE": "complete_bash", "COMP_WORDS": "ipexctl ex", "COMP_CWORD": "1"}
    contenders = (
        Contender(BESIDE, (sys.executable, "-c", "import typer")),
        ipexctl(VERSION, "--version"),
        ipexctl(HELP, "--help"),
        replace(ipexctl(TAB), env=tab),
    )
    for contender in contenders:
        spend(contender, rig.env)
    figures = spend_in_turns(contenders, rig.runs * ROUNDS, rig.env)
    walls = {name: [spent.wall for spent in spents] for name, spents in figures.items()}
    ratios = {name: ratio(wall, walls[BESIDE]) for name, wall in walls.items()}
    rows = tuple(
        (
            name,
            f"{median(walls[name]) * 1000:.0f}",
            f"{median([spent.cpu for spent in figures[name]]) * 1000:.0f}",
            f"{ratios[name]:.2f}x",
        )
        for name in figures
    )
    goals = tuple(
        Goal(f"{name} ≤ {aim}x {BESIDE}", f"{ratios[name]:.2f}x", ratios[name] <= aim) for name, aim in AIMS.items()
    )
    return Report(rig.runs * ROUNDS, ("whole process", "wall ms", "CPU ms", "beside import typer"), rows, goals)
