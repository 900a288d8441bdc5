"""The check of an existing environment against a request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stack_helpers import env_record, installed

from ipexctl.facts.facts import Facts
from ipexctl.facts.software import Env, Software
from ipexctl.stack.catalog.user_table import merged
from ipexctl.stack.env.environment import CheckResult
from ipexctl.stack.env.record import find_existing, read_record
from ipexctl.stack.install_context import InstallRequest
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest

ASKED = EnvRequest(StackRequest(torch="2.8"), ("peft==1.0",))
RECORD = env_record("ipex-2.8-12345678", ASKED)


NO_VARIABLES = ({"X=1; touch marker #": "v"}, {"1X": "v"}, {"X": 1}, {"X": None}, {"": "v"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("variables", variables) for variables in NO_VARIABLES),
        *[("row", ["x"]), ("module", 7), ("packages", {"torch": 2}), ("prepended", [1]), ("python", None)],
    ],
)
def test_a_record_with_a_field_of_another_type_is_none(field: str, value: object) -> None:
    assert read_record(json.dumps(RECORD)) is not None
    assert read_record(json.dumps({**RECORD, field: value})) is None


def host(*envs: Env) -> Facts:
    return Facts(software=Software(envs=envs))


def test_an_environment_made_for_the_same_request_is_found_with_who_has_it() -> None:
    hosts = {"a": host(installed(RECORD, "default")), "b": host(installed(RECORD)), "c": host()}
    found = find_existing(ASKED.to_json(), "default", hosts)
    assert found is not None
    assert (found.record.name, found.hosts) == ("ipex-2.8-12345678", ("a", "b"))


@pytest.mark.parametrize(
    "other", [EnvRequest(StackRequest(torch="2.8")), EnvRequest(StackRequest(torch="2.8", python="3.11"), ASKED.extras)]
)
def test_another_request_is_another_environment(other: EnvRequest) -> None:
    assert find_existing(other.to_json(), "default", {"a": host(installed(RECORD, "default"))}) is None


def test_one_environment_may_answer_several_requests() -> None:
    other = EnvRequest(StackRequest(stack="ipex-2.8"))
    hosts = {"a": host(installed(env_record("ipex-2.8-12345678", ASKED, other), "default"))}
    assert find_existing(ASKED.to_json(), "default", hosts) == find_existing(other.to_json(), "default", hosts)


def test_of_two_the_one_with_the_name_is_taken() -> None:
    first, second = env_record("ipex-2.8-11111111", ASKED), env_record("ipex-2.8-22222222", ASKED)
    hosts = {"a": host(installed(first), installed(second, "mine")), "b": host(installed(first))}
    found = find_existing(ASKED.to_json(), "mine", hosts)
    assert found is not None and found.record.name == second["name"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": "ipexctl.env/1"}', '{"schema": "other/1"}'])
def test_what_is_no_record_is_none(text: str) -> None:
    assert read_record(text) is None


def test_a_record_that_was_carried_under_another_directory_is_not_believed() -> None:
    moved = Env(name="copy", path="/h/envs/copy", runs=True, record=json.dumps(RECORD))
    assert find_existing(ASKED.to_json(), "default", {"a": host(moved)}) is None


def test_a_changed_table_of_the_user_is_another_request() -> None:
    def asked(*own: str) -> dict[str, Any]:
        return InstallRequest(ASKED, Sources(), merged(f"[{','.join(own)}]", "rows.json")).to_json()

    first, second = (json.dumps({"name": "ipex-2.8", "requires": [name]}) for name in ("oneccl", "peft"))
    assert asked() == ASKED.to_json()
    assert asked(first) == asked(first) != asked()
    assert asked(first) != asked(second)


@pytest.mark.parametrize(
    ("verified", "failed"),
    [
        ({}, False),
        ({"m1": {"ok": False}}, True),
        ({"m1": {"ok": False}, "m2": {"ok": True}}, False),
        ({"m1": {}}, False),
        ({"m1": "?"}, False),
    ],
)
def test_an_environment_failed_where_every_verification_of_it_did(verified: dict[str, Any], failed: bool) -> None:
    assert CheckResult(True, (), True, "e", "1", verified=verified).has_failed is failed
