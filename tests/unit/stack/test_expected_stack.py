"""choose_stack(): the stack that hosts have, or would get from an installation."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from stack_helpers import (
    BINDINGS_2_7,
    NEWEST,
    PYPI,
    TORCH_2_7_CPU,
    env_record,
    host,
    index,
    installed,
    planned,
    refused,
)

from ipexctl.errors import Refusal
from ipexctl.facts.facts import Facts
from ipexctl.stack.catalog import merged, rows
from ipexctl.stack.expected_stack import choose_stack
from ipexctl.stack.lock.wheel_indexes import CONTROL_MACHINE, IndexCache
from ipexctl.stack.lock.wheels import Availability
from ipexctl.stack.resolve.model import EnvRequest, StackPlan, StackRequest, Undecided
from ipexctl.stack.resolve.resolver import projects
from message_data import missing

USE = "train.py imports IPEX"


@pytest.fixture
def cache(tmp_path: Path) -> IndexCache:
    return IndexCache({}, tmp_path)


def with_env(facts: Facts, row: str, request: StackRequest = NEWEST, *names: str, runs: bool = True) -> Facts:
    """The host with an environment of that stack."""
    record = {**env_record(f"{row}-12345678", EnvRequest(request)), "packages": {"torch": "2.13.0+cpu"}}
    env = installed(record, *(names or ("default",)))._replace(runs=runs)
    return facts._replace(software=facts.software._replace(envs=(env,)))


def test_packages_are_added_to_an_environment_for_the_glibc_of_its_hosts() -> None:
    """The lock of ipex-2.4 has an impi-rt for glibc 2.28, which no wheel for the stack's own minimum could replace."""
    hosts = {"n1": with_env(host("2.36"), "ipex-2.4"), "n2": with_env(host("2.31"), "ipex-2.4")}
    found = choose_stack(NEWEST, hosts, rows())
    assert planned(found).glibc == "2.31"
    unknown = choose_stack(NEWEST, {"n1": with_env(host(None), "ipex-2.4")}, rows())
    assert planned(unknown).glibc == "2.17"


@pytest.mark.parametrize(
    ("wheels", "name", "with_ipex"),
    [
        (index(*PYPI, BINDINGS_2_7, TORCH_2_7_CPU), "torch-2.15", "ipex-2.7"),
        (index(*PYPI), "torch-2.15", "ipex-2.8"),
        (index(*PYPI, "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"), "torch-2.13", "ipex-2.8"),
    ],
)
def test_cached_index_answer_decides_the_stack(
    cache: IndexCache, wheels: Availability, name: str, with_ipex: str
) -> None:
    cache.save(CONTROL_MACHINE, _answer_for_all_projects(wheels))
    for hosts in ({"n1": host()}, {}):
        assert planned(choose_stack(NEWEST, hosts, rows(), cache=cache)).row.name == name
        plan = planned(_chosen(hosts, cache))
        assert (plan.row.name, missing(plan.reason.text, "train.py IPEX")) == (with_ipex, [])


def test_without_an_index_answer_the_candidates_are_named(cache: IndexCache) -> None:
    outcome = _chosen({"n1": host()}, cache)
    assert isinstance(outcome, Undecided)
    assert [plan.row.name for plan in outcome.candidates] == ["ipex-2.7", "ipex-2.8"]
    plan = planned(choose_stack(NEWEST, {"n1": host()}, rows(), cache=cache))
    assert (plan.row.name, missing(plan.reason.text, "index install --dry-run")) == ("torch-2.15", [])


def test_empty_index_answer_is_a_refusal(cache: IndexCache) -> None:
    cache.save(CONTROL_MACHINE, _answer_for_all_projects(index(source="/mnt/empty")))
    assert "/mnt/empty" in refused(_chosen({"n1": host()}, cache)).reason


def test_installed_environment_takes_precedence(cache: IndexCache) -> None:
    cache.save(CONTROL_MACHINE, _answer_for_all_projects(index(*PYPI, BINDINGS_2_7, TORCH_2_7_CPU)))
    plan = planned(_chosen({"n1": with_env(host(), "torch-2.13"), "n2": host()}, cache))
    assert (plan.row.name, plan.torch, plan.ipex, plan.backend) == ("torch-2.13", "2.13.0+cpu", None, "gloo")
    assert "n1" in plan.reason.text


@pytest.mark.parametrize(
    "facts",
    [
        with_env(host(), "torch-2.13", NEWEST, "other"),
        with_env(host(), "torch-2.13", runs=False),
        with_env(host(), "torch-9.9"),
    ],
)
def test_environments_with_other_name_broken_or_of_unknown_stacks_are_ignored(cache: IndexCache, facts: Facts) -> None:
    assert isinstance(_chosen({"n1": facts}, cache), Undecided)


def test_requested_stack_matches_the_environment_made_for_that_request(cache: IndexCache) -> None:
    torch = StackRequest(stack="torch")
    hosts = {"n1": with_env(host(), "torch-2.13", torch)}
    assert planned(choose_stack(torch, hosts, rows(), cache=cache)).row.name == "torch-2.13"
    assert planned(choose_stack(StackRequest(torch="2.7"), hosts, rows(), cache=cache)).row.name == "ipex-2.7"


def test_environments_made_with_another_version_table_are_ignored(cache: IndexCache) -> None:
    table = merged('[{"name": "torch-2.16", "torch": "2.16.0", "torch_pythons": ["3.11"]}]', "rows.json")
    outcome = choose_stack(NEWEST, {"n1": with_env(host(), "torch-2.13")}, table, cache=cache, ipex_use=USE)
    assert isinstance(outcome, Undecided)
    assert outcome.candidates[-1].row.name == "ipex-2.8"
    assert planned(choose_stack(NEWEST, {"n1": host()}, table, cache=cache)).row.name == "torch-2.16"


def test_index_answer_to_a_host_precedes_that_to_the_control_machine(cache: IndexCache) -> None:
    cache.save(CONTROL_MACHINE, _answer_for_all_projects(index(*PYPI)))
    cache.save("n1", _answer_for_all_projects(index(*PYPI, BINDINGS_2_7, TORCH_2_7_CPU)))
    assert planned(_chosen({"n1": host()}, cache)).row.name == "ipex-2.7"
    cache.save("n1", _answer_for_all_projects(index(source="/mnt/empty")))
    assert planned(_chosen({"n1": host()}, cache)).row.name == "ipex-2.8"


def test_index_cache_is_valid_for_a_day_and_for_the_same_pip_settings(
    tmp_path: Path, cache: IndexCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.save(CONTROL_MACHINE, _answer_for_all_projects(index(*PYPI)))
    assert isinstance(_chosen({}, IndexCache({"PIP_INDEX_URL": "https://other"}, tmp_path)), Undecided)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    monkeypatch.setattr("time.time", lambda: os.stat(file).st_mtime + 90_000)
    assert isinstance(_chosen({}, cache), Undecided)
    for later, is_known in ((-0.5, False), (1.0, True), (86_300, True)):  # a clock that was set back, too
        monkeypatch.setattr("time.time", lambda later=later: os.stat(file).st_mtime + later)
        assert isinstance(_chosen({}, cache), Undecided) != is_known
    monkeypatch.undo()
    for damaged in ("", "[]", text.replace('"wheels"', '"wheel"'), text[:-2]):
        file.write_text(damaged)
        assert isinstance(_chosen({}, cache), Undecided)


def test_index_cache_keeps_answers_about_other_projects(cache: IndexCache) -> None:
    cache.save(CONTROL_MACHINE, _answer_for_all_projects(index(*PYPI, BINDINGS_2_7, TORCH_2_7_CPU)))
    cache.save(CONTROL_MACHINE, index("torch-2.7.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"))
    assert planned(_chosen({"n1": host()}, cache)).row.name == "ipex-2.7"


def test_index_cache_ignores_results_without_an_answer(cache: IndexCache) -> None:
    cache.save(CONTROL_MACHINE, replace(_answer_for_all_projects(index(*PYPI)), answered=()))
    assert isinstance(_chosen({}, cache), Undecided)


def _chosen(hosts: dict[str, Facts], cache: IndexCache) -> StackPlan | Undecided | Refusal:
    """The stack for a project that uses IPEX, which may depend on the indexes."""
    return choose_stack(NEWEST, hosts, rows(), cache=cache, ipex_use=USE)


def _answer_for_all_projects(wheels: Availability) -> Availability:
    """The answer of indexes that were queried about every project of the table."""
    return replace(wheels, candidates={project: wheels.of(project) for project in projects(StackRequest(stack="ipex"))})
