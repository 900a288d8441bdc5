"""The check of an existing environment against a request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import uv
from stack_helpers import env_record, installed

from env_helpers import PYTHON, Home
from ipexctl.facts.facts import Facts
from ipexctl.facts.software import Env, Software
from ipexctl.hosts.host import Host
from ipexctl.node.env.env_replies import CheckResult, EnvRecord
from ipexctl.remote.local import LocalSession
from ipexctl.remote.node_call import AgentPlace
from ipexctl.remote.outcome import HostError
from ipexctl.stack.catalog import merged
from ipexctl.stack.env.environment import EnvClient, EnvSpec, parse_result
from ipexctl.stack.env.record import Existing, find_existing, read_record
from ipexctl.stack.install_context import InstallRequest
from ipexctl.stack.resolve.model import EnvRequest, Sources, StackRequest

REQUEST = EnvRequest(StackRequest(torch="2.8"), ("peft==1.0",))
RECORD = env_record("ipex-2.8-12345678", REQUEST)


INVALID_VARIABLES = ({"X=1; touch marker #": "v"}, {"1X": "v"}, {"X": 1}, {"X": None}, {"": "v"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("variables", variables) for variables in INVALID_VARIABLES),
        *[("row", ["x"]), ("module", 7), ("packages", {"torch": 2}), ("prepended", [1]), ("python", None)],
        *[("variables", None), ("prepended", None)],
        *(("packages", {"torch": version}) for version in ("2.8\n--extra-index-url https://x/simple", "new", "", "-1")),
        *(("packages", {name: "2.8"}) for name in ("--pre", "a\nb", "", "a b")),
    ],
)
def test_records_with_an_invalid_field_are_ignored(field: str, value: object) -> None:
    assert read_record(json.dumps(RECORD)) is not None
    assert read_record(json.dumps({**RECORD, field: value})) is None


def host(*envs: Env) -> Facts:
    return Facts(software=Software(envs=envs))


def existing(request: EnvRequest, name: str, hosts: dict[str, Facts]) -> Existing | None:
    return find_existing(hosts, name, lambda _, record: request.to_json() in record.requests)


def test_environment_of_the_same_request_is_found_with_its_hosts() -> None:
    hosts = {"a": host(installed(RECORD, "default")), "b": host(installed(RECORD)), "c": host()}
    found = existing(REQUEST, "default", hosts)
    assert found is not None
    assert (found.record.name, found.hosts) == ("ipex-2.8-12345678", ("a", "b"))


@pytest.mark.parametrize(
    "other",
    [EnvRequest(StackRequest(torch="2.8")), EnvRequest(StackRequest(torch="2.8", python="3.11"), REQUEST.packages)],
)
def test_environment_of_another_request_is_not_found(other: EnvRequest) -> None:
    assert existing(other, "default", {"a": host(installed(RECORD, "default"))}) is None


def test_one_environment_may_serve_several_requests() -> None:
    other = EnvRequest(StackRequest(stack="ipex-2.8"))
    hosts = {"a": host(installed(env_record("ipex-2.8-12345678", REQUEST, other), "default"))}
    assert existing(REQUEST, "default", hosts) == existing(other, "default", hosts)


def test_environment_with_the_given_name_is_preferred() -> None:
    first, second = env_record("ipex-2.8-11111111", REQUEST), env_record("ipex-2.8-22222222", REQUEST)
    hosts = {"a": host(installed(first), installed(second, "mine")), "b": host(installed(first))}
    found = existing(REQUEST, "mine", hosts)
    assert found is not None and found.record.name == second["name"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("extras", value) for value in (5, {"a": 1}, [1], ["a b"], ["a\n--pre"], ["--pre"], ["a==1\n"])),
        *[("constraints", ["-r x"]), ("torch", 2.8), ("stack", ["x"]), ("python", {})],
    ],
)
def test_malformed_requests_of_a_record_are_skipped(field: str, value: object) -> None:
    record = read_record(json.dumps({**RECORD, "requests": [{**REQUEST.to_json(), field: value}, REQUEST.to_json()]}))
    assert record is not None and record.requests == (REQUEST.to_json(),)


def test_requests_of_older_versions_get_default_fields() -> None:
    record = read_record(json.dumps({**RECORD, "requests": [{"stack": "ipex-2.8", "extras": None}]}))
    assert record is not None and EnvRequest.from_json(record.requests[0]) == EnvRequest(StackRequest(stack="ipex-2.8"))


@pytest.mark.parametrize("reply", ["abc", 5, [1], None, {}, {"ok": True}])
def test_malformed_verification_results_are_ignored(reply: object) -> None:
    assert parse_result(reply) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, "[]", "null", '{"schema": "ipexctl.env/1"}', '{"schema": "other/1"}']
)
def test_invalid_records_are_ignored(text: str) -> None:
    assert read_record(text) is None


def test_records_in_a_directory_of_another_name_are_ignored() -> None:
    moved = Env(name="copy", path="/h/envs/copy", runs=True, record=json.dumps(RECORD))
    assert existing(REQUEST, "default", {"a": host(moved)}) is None


def test_changed_user_rows_make_another_request() -> None:
    def asked(*own: str) -> dict[str, Any]:
        return InstallRequest(REQUEST, Sources(), merged(f"[{','.join(own)}]", "rows.json")).to_json()

    first, second = (json.dumps({"name": "ipex-2.8", "requires": [name]}) for name in ("oneccl", "peft"))
    assert asked() == REQUEST.to_json()
    assert asked(first) == asked(first) != asked()
    assert asked(first) != asked(second)


@pytest.mark.parametrize(
    ("verified", "failed"),
    [
        ({}, False),
        ({"m1": {"ok": False}}, True),
        ({"m1": {"ok": False}, "m2": {"ok": True}}, False),
        ({"m1": {}}, False),
    ],
)
def test_environment_has_failed_if_every_verification_failed(verified: dict[str, Any], failed: bool) -> None:
    assert CheckResult((), True, "e", "1", verified=verified).has_failed is failed


def test_build_with_a_missing_wheel_is_a_host_error(tmp_path: Path) -> None:
    home = Home.below(tmp_path)
    torch = home.wheels[0]
    (home.path / "wheels" / torch.sha256 / torch.filename).unlink()
    client = EnvClient(LocalSession(Host("localhost", "localhost")), AgentPlace(PYTHON, str(home.path)))
    spec = EnvSpec(home.name, home.lock, home.add(Path(uv.find_uv_bin())), EnvRecord(**home.request()["record"]), {})
    with pytest.raises(HostError, match=r"torch-.* is not in") as caught:
        client.build(spec, PYTHON, on_event=print)
    assert caught.value.fix == "run ipexctl install again"
