"""An option that the command line, ipexctl.toml, playbooks and hosts share is written once."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest
from launch_helpers import cpu, machine, plan

from ipexctl.launch.overrides import check_limits
from ipexctl.node.common.job import ProcessOptions
from ipexctl.option_declaration import declared, values_for_wrapper
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


def test_rank_wrapper_knows_the_options_that_it_is_to_apply() -> None:
    of_wrapper = values_for_wrapper(RankOptions())
    assert ProcessOptions()._asdict() == of_wrapper
    assert all(declared(RankOptions)[name].in_sh for name in of_wrapper), "the exports write it as words of sh"


@pytest.mark.parametrize("nice", [0, 19])
def test_options_of_the_rank_wrapper_are_in_its_job(nice: int) -> None:
    found = plan(machine(cpu(4), 1))
    job = job_of(found, {}, common_job(found, RunSpec("script", ("train.py",), nice=nice)), ["node1"])
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
