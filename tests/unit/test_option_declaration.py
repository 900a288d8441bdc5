"""An option that the command line, ipexctl.toml, playbooks and hosts share is written once."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launch_helpers import cpu, machine, plan

import ipexctl
from ipexctl.cli.app import COMMANDS
from ipexctl.cli.config import command_specs
from ipexctl.jobs.submit.options import RunOptions
from ipexctl.jobs.submit.start import job_of
from ipexctl.launch.options import RankOptions
from ipexctl.launch.overrides import check_limits
from ipexctl.node.common.job import ProcessOptions
from ipexctl.option_declaration import declared, values_for_wrapper

PACKAGE = Path(ipexctl.__file__).parent
NOTHING = (None, False, True, 0, "", ())
"""Defaults that many fields have."""
LIMITS = [
    (kind, name, limit, value)
    for kind in (RankOptions, RunOptions)
    for name, declaration in declared(kind).items()
    for limit, value in (("least", declaration.least), ("most", declaration.most))
    if value is not None
]


def test_rank_wrapper_knows_the_options_that_it_is_to_apply() -> None:
    of_wrapper = values_for_wrapper(RankOptions())
    assert ProcessOptions()._asdict() == of_wrapper
    assert all(declared(RankOptions)[name].in_sh for name in of_wrapper), "the exports write it as words of sh"


@pytest.mark.parametrize("nice", [0, 19])
def test_options_of_the_rank_wrapper_are_in_its_job(nice: int) -> None:
    job = job_of(plan(machine(cpu(4), 1), nice=nice), {}, ["node1"])
    assert job is not None
    assert job.options == ProcessOptions(nice=nice)


@pytest.mark.parametrize(("kind", "name", "limit", "value"), LIMITS)
def test_limits_are_checked_on_both_sides(kind: type, name: str, limit: str, value: float) -> None:
    outside = value - 1 if limit == "least" else value + 1
    options: Any = kind()
    assert check_limits(replace(options, **{name: value})) is None
    refusal = check_limits(replace(options, **{name: outside}))
    assert refusal is not None
    assert declared(kind)[name].flag in refusal.reason


def test_defaults_are_written_once() -> None:
    assert defaults_written_again() == []


def test_a_second_place_of_a_default_is_noticed() -> None:
    source = """
class Record:
    hang_after: float = 600.0
    other: float = 600.0
def follow(*, reconnect: float = 300.0, forks: int = 1): ...
fan_out(forks=32)
HELP = "Report a hang after S seconds (default: 600)."
OPTIONS = {"on_hang": Option("str", default="report")}
"""
    names = [name for name, _ in again_in(ast.parse(source), defaults_of_options())]
    assert sorted(names) == ["forks", "hang_after", "hang_after", "on_hang", "reconnect"]


def defaults_of_options() -> dict[str, set[Any]]:
    """The defaults of the options of all commands, by parameter name."""
    found = defaultdict(set)
    for _, spec in command_specs(*COMMANDS):
        for param in spec.params.values():
            default = getattr(param.default, "value", param.default)
            if default not in NOTHING:
                found[param.name].add(default)
    return found


def defaults_written_again() -> list[str]:
    """The places where the default of an option is written a second time: `hang_after jobs/x.py:12`."""
    defaults = defaults_of_options()
    return [
        f"{name} {path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for name, line in again_in(ast.parse(path.read_text()), defaults)
    ]


def again_in(tree: ast.AST, defaults: Mapping[str, Set[Any]]) -> Iterator[tuple[str, int]]:
    """Where source has the default of an option as a literal: for a field, a parameter, an argument or an option of a
    playbook module that has the option's name, or in the text of a help. Its declaration has it as an argument.
    """
    numbers = {f"(default: {value:g})": name for name, values in defaults.items() for value in values
               if isinstance(value, (int, float))}  # fmt: skip
    for node in ast.walk(tree):
        named: list[tuple[str | None, ast.expr | None]] = []
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            named = [(node.target.id, node.value)]
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            named = [
                (arg.arg, value) for arg, value in zip(reversed(positional), reversed(node.defaults), strict=False)
            ]
            named += [(arg.arg, value) for arg, value in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
        elif isinstance(node, ast.Call):
            named = [(keyword.arg, keyword.value) for keyword in node.keywords]
        elif isinstance(node, ast.Dict):
            items = zip(node.keys, node.values, strict=True)
            calls = [(key, value) for key, value in items if isinstance(value, ast.Call)]
            named = [
                (str(key.value), keyword.value)
                for key, call in calls
                for keyword in call.keywords
                if isinstance(key, ast.Constant) and keyword.arg == "default"
            ]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((name, node.lineno) for text, name in numbers.items() if text in node.value)
        for name, value in named:
            if name and isinstance(value, ast.Constant) and value.value in defaults.get(name, ()):
                yield name, value.lineno
