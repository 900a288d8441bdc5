"""Decoding JSON into records by the types of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from ipexctl.node.common.json_records import as_json, decode, decode_valid


class Wheel(NamedTuple):
    name: str
    size: int | None = None


class Env(NamedTuple):
    name: str
    seconds: float
    wheels: tuple[Wheel, ...] = ()
    digests: Mapping[str, str | None] = {}
    by_rank: Mapping[int, tuple[int, ...]] = {}
    main: Wheel | None = None


@dataclass(frozen=True)
class Listing:
    envs: tuple[Env, ...]
    count: int = 3


DOCUMENT = {
    "name": "default",
    "seconds": 2,
    "wheels": [{"name": "torch", "size": 7}, {"name": "numpy", "size": None}],
    "digests": {"a": "1", "b": None},
    "by_rank": {"4": [0, 1]},
    "main": {"name": "torch"},
}
ENV = Env("default", 2.0, (Wheel("torch", 7), Wheel("numpy")), {"a": "1", "b": None}, {4: (0, 1)}, Wheel("torch"))


def test_a_record_with_records_in_it_is_read_and_written() -> None:
    assert decode(Env, DOCUMENT, "the environment") == ENV
    assert decode(Listing, {"envs": [DOCUMENT], "more": 1}, "the list") == Listing((ENV,))
    assert decode(Env, {**as_json(ENV), "by_rank": None}, "the environment") == ENV._replace(by_rank={})


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("name", None, "name is missing"),
        ("seconds", True, "seconds is not of type float"),
        ("seconds", float("nan"), "seconds is out of range"),
        ("wheels", [{"name": "a", "size": 1 << 63}], "size is out of range"),
        ("wheels", [7], "an item of wheels is not of type dict"),
        ("digests", {"a": 1}, "an item of digests is not of type str"),
    ],
)
def test_an_invalid_field_is_an_error_that_names_it(field: str, value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(Env, {**DOCUMENT, field: value}, "the environment")


def test_the_lenient_reader_drops_what_is_invalid() -> None:
    wheels = [{"name": 7, "size": 1}, "torch", {"name": "numpy", "size": "large"}]
    document = {"seconds": "long", "wheels": wheels, "digests": [], "by_rank": {"1": [0, "x"]}, "main": 3}
    assert decode_valid(Env, document) == Env("", 0.0, (Wheel("", 1), Wheel("numpy")), {}, {1: (0,)}, None)
