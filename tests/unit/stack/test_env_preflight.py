"""Properties of a home that prevent an environment."""

from __future__ import annotations

import pytest

from ipexctl.facts.facts import Facts
from ipexctl.facts.system import Disk, HomeDirectory
from ipexctl.hosts.home import check_same_home, find_leaders
from ipexctl.stack.lock.lock import Lock, Wheel, home_obstacle
from ipexctl.text import readable

LOCK = Lock("3.11", (Wheel("torch", "2.8.0", "torch-2.8.0-cp311-cp311-linux_x86_64.whl", "0" * 64, size=200_000_000),))


def at(**disk: object) -> Facts:
    return Facts(home=HomeDirectory("/h/.ipexctl", disk=Disk("/h", **disk)))  # type: ignore[arg-type]


def test_wheels_already_in_the_home_need_no_space() -> None:
    facts = at(writable=True, free=500_000_000)
    assert home_obstacle(facts, LOCK) is not None
    assert home_obstacle(facts, LOCK, held=200_000_000) is None


def test_unknown_facts_are_no_obstacle() -> None:
    assert home_obstacle(Facts(), LOCK) is None
    assert home_obstacle(at(), LOCK) is None


def test_equal_homes_are_no_obstacle() -> None:
    assert check_same_home({"a": "/h", "b": "/h"}, []) is None


def test_first_host_of_a_store_works_for_the_others() -> None:
    stores = {"a": "1", "b": "2", "c": "1"}
    assert find_leaders(stores, stores.__getitem__) == {"a": "a", "b": "b", "c": "a"}


@pytest.mark.parametrize(
    ("count", "text"), [(3_700_000_000, "3.7 GB"), (240_000_000, "240 MB"), (1_500, "2 kB"), (250e9, "250 GB")]
)
def test_sizes_are_formatted_in_powers_of_1000(count: float, text: str) -> None:
    assert readable(count) == text
