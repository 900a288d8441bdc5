"""Models and data of a hub: the cache that ranks read, and whether they may ask."""

from __future__ import annotations

from typing import Any

import pytest
from launch_helpers import chosen, cpu, machine, plan, value

from ipexctl.facts.facts import Facts
from ipexctl.facts.system_facts import Environment, HomeDirectory
from ipexctl.launch.hub_settings import OFFLINE_NAMES
from ipexctl.node.common.run_options import Export
from ipexctl.node.hub.hub_check import FoundHub

HOME = "/home/me/.ipexctl/hub"


def host(number: int, *, has_hub: bool = False, **variables: str) -> Facts:
    return machine(
        cpu(8),
        number,
        home=HomeDirectory("/home/me/.ipexctl", True, has_hub=has_hub),
        environment=Environment(variables=variables, tools={"ssh": "/usr/bin/ssh"}),
    )


def hub(*hosts: FoundHub) -> dict[str, FoundHub]:
    return {f"node{at}": found for at, found in enumerate(hosts, 1)}


REACHES, CUT_OFF = FoundHub(), FoundHub("no answer in 5 s")


@pytest.mark.parametrize(
    ("found", "options", "home"),
    [
        ({}, {}, HOME),  # nothing is known of the script
        (hub(REACHES, REACHES), {}, HOME),
        (hub(FoundHub(has_own_cache=True), REACHES), {}, None),
        ({}, {"exports": (Export("HF_HOME", "-x", "/m"),)}, "/m"),
        ({}, {"exports": (Export("HF_HUB_CACHE", "-x", "/m"),)}, None),
    ],
)
def test_ranks_read_the_cache_of_the_home(
    found: dict[str, FoundHub], options: dict[str, Any], home: str | None
) -> None:
    made = plan(host(1, has_hub=True), host(2, has_hub=True), hub=found, **options)
    assert value(made, "HF_HOME") == home
    token = value(made, "HF_TOKEN_PATH")
    assert token == ("~/.cache/huggingface/token" if home == HOME else None)


def test_empty_cache_and_logins_with_a_cache_change_nothing() -> None:
    assert value(plan(host(1), host(2)), "HF_HOME") is None
    made = plan(host(1, has_hub=True), host(2, has_hub=True, HF_HOME="/models"))
    assert (value(made, "HF_HOME"), value(made, "HF_HOME", "node2")) == (HOME, None)
    made = plan(host(1, has_hub=True, XDG_CACHE_HOME="/c"))
    assert value(made, "HF_TOKEN_PATH") == "/c/huggingface/token"


@pytest.mark.parametrize(
    ("found", "options", "offline"),
    [
        ({}, {}, (None, None)),
        (hub(REACHES, REACHES), {}, (None, None)),
        (hub(CUT_OFF, CUT_OFF), {}, ("1", "1")),
        (hub(REACHES, CUT_OFF), {}, (None, "1")),
        (hub(CUT_OFF, CUT_OFF), {"exports": (Export("HF_HUB_OFFLINE", "-x", "0"),)}, ("0", "0")),
    ],
)
def test_ranks_that_cannot_reach_the_hub_do_not_ask_it(
    found: dict[str, FoundHub], options: dict[str, Any], offline: tuple[str | None, str | None]
) -> None:
    made = plan(host(1), host(2), hub=found, **options)
    assert (value(made, "HF_HUB_OFFLINE"), value(made, "HF_HUB_OFFLINE", "node2")) == offline
    is_own = "exports" in options
    for name in OFFLINE_NAMES[1:]:
        assert value(made, name, "node2") == (None if is_own else offline[1])


def test_reasons_and_variables_of_the_user() -> None:
    made = plan(host(1, HF_HUB_OFFLINE="0"), host(2), hub=hub(CUT_OFF, CUT_OFF))
    assert value(made, "HF_HUB_OFFLINE") is None
    assert "no answer in 5 s" in chosen(made, "HF_HUB_OFFLINE", "node2").reason
    made = plan(host(1), hub=hub(CUT_OFF), exports=(Export("HF_DATASETS_OFFLINE", "-x", "0"),))
    assert [value(made, name) for name in OFFLINE_NAMES] == ["1", "1", "0"]


def test_hidden_repositories_are_not_named_without_a_cache_of_the_home() -> None:
    for has_hub in (False, True):
        notes = plan(host(1, has_hub=has_hub), hub=hub(FoundHub(others=3))).notes
        assert len([note for note in notes if "HF_HOME" in note and " 3 " in note]) == has_hub
