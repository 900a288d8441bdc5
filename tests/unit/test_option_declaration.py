"""An option that the command line, ipexctl.toml, playbooks and hosts share is written once."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest
from launch_helpers import cpu, machine, plan

from ipexctl.launch.overrides import check_limits
from ipexctl.node.common.job import ProcessOptions
from ipexctl.option_declaration import declared
from ipexctl.run.start.begin import common_job, job_of
from ipexctl.spec import RankOptions, RunOptions, RunSpec
from measures import defaults_in, defaults_of_options

LIMITS = [
    (kind, name, limit, value)
    for kind in (RankOptions, RunOptions)
    for name, declaration in declared(kind).items()
    for limit, value in (("least", declaration.least), ("most", declaration.most))
    if value is not None
]


def test_rank_wrapper_applies_the_options_that_exports_write_as_words_of_sh() -> None:
    in_sh = [name for name, declaration in declared(RankOptions).items() if declaration.in_sh]
    assert ProcessOptions()._asdict() == {name: getattr(RankOptions(), name) for name in in_sh}
    spec = RunSpec("script", ("train.py",), nice=19)
    found = plan(machine(cpu(4), 1), nice=19)
    job = job_of(found, {}, common_job(found, spec), ["node1"])
    assert job is not None
    assert job.options == ProcessOptions(nice=19)


@pytest.mark.parametrize(("kind", "name", "limit", "value"), LIMITS)
def test_limits_are_checked_on_both_sides(kind: type, name: str, limit: str, value: float) -> None:
    outside = value - 1 if limit == "least" else value + 1
    options: Any = kind()
    assert check_limits(replace(options, **{name: value})) is None
    refusal = check_limits(replace(options, **{name: outside}))
    assert refusal is not None
    assert declared(kind)[name].flag in refusal.reason


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
    names = [name for name, _ in defaults_in(ast.parse(source), defaults_of_options())]
    assert sorted(names) == ["forks", "hang_after", "hang_after", "on_hang", "reconnect"]
