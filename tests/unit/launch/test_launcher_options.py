"""The table of launchers knows the options of the real programs, with their number of values.

`launcher_options.json` has what was read from the programs: for each, with its version, its options by their number of
values, and in `from` how. `pair` is NAME VALUE or NAME=VALUE. The number of a refused option has no effect.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ipexctl.launch.launchers.line import read_line
from ipexctl.launch.launchers.table import LAUNCHERS, LauncherRow

PROGRAMS: list[dict[str, str]] = json.loads((Path(__file__).parent / "launcher_options.json").read_text())
VALUES = {"nothing": (), "value": ("1",), "two": ("A", "1"), "pair": ("A", "1")}
COMMANDS = {row.name: (row.commands[0] if row.commands else ("python", "-m", row.modules[0])) for row in LAUNCHERS}


def row_of(program: dict[str, str]) -> LauncherRow:
    return next(row for row in LAUNCHERS if row.name == program["launcher"])


def options_of(program: dict[str, str]) -> dict[str, str]:
    return {name: takes for takes in VALUES for name in program.get(takes, "").split()}


def name_of(program: dict[str, str]) -> str:
    return f"{program['launcher']}, {program['program']}"


@pytest.mark.parametrize("program", PROGRAMS, ids=name_of)
def test_every_option_of_the_program_is_known_with_its_values(program: dict[str, str]) -> None:
    row = row_of(program)
    unknown, wrong = [], []
    for name, takes in options_of(program).items():
        option = row.option(name)
        if option is None:
            unknown.append(name)
        elif option.effect != "refused" and option.takes != takes:
            wrong.append((name, option.takes, takes))
    assert (unknown, wrong) == ([], [])


@pytest.mark.parametrize("program", PROGRAMS, ids=name_of)
def test_the_script_behind_an_option_is_found(program: dict[str, str]) -> None:
    row = row_of(program)
    interpreter = ("python",) if row.runs_commands else ()
    for name, takes in options_of(program).items():
        option = row.option(name)
        assert option is not None
        if option.effect in ("refused", "module", "command"):
            continue
        dashes = "-" if len(name) == 1 else "--"
        words = (*COMMANDS[row.name], f"{dashes}{name.replace('_', '-')}", *VALUES[takes], *interpreter, "x.py", "-n")
        line = read_line(words)
        assert line is not None
        assert line.argv == (() if not row.module else (row.module,)) + ("x.py", "-n"), name


def test_an_option_with_two_arities_is_refused() -> None:
    arities: dict[tuple[Any, ...], set[str]] = {}
    for program in PROGRAMS:
        for name, takes in options_of(program).items():
            arities.setdefault((program["launcher"], name), set()).add(takes)
    both = {name for (_, name), takes in arities.items() if len(takes) > 1}
    assert both == {"s", "dvm", "display_topo"}
    row = next(row for row in LAUNCHERS if row.name == "mpirun")
    assert {row.options[name].effect for name in both} == {"refused"}
