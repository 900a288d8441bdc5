"""The one way to read JSON and records in it: what is refused is one kind of error, whatever wrote it."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ipexctl.node.common.files import read_json
from ipexctl.node.common.json_records import (
    MAX_DEPTH,
    JsonError,
    decode,
    decode_valid,
    encode,
    parse_json,
    parse_object,
    read_json_file,
)

DEEP = 200_000


def nested(depth: int, of: str = "[]") -> str:
    return of[:-1] * depth + of[-1] * depth


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * DEEP, "nested too deeply"),
        (nested(DEEP), "nested too deeply"),
        ('{"a":' * DEEP, "nested too deeply"),
        ('{"a":[' * DEEP, "nested too deeply"),
        (nested(MAX_DEPTH + 1), "nested too deeply"),
        (f'[1, {{"a": {nested(MAX_DEPTH)}}}]', "nested too deeply"),
        ('["]", ' * (MAX_DEPTH + 1) + "1" + "]" * (MAX_DEPTH + 1), "nested too deeply"),
        (r'["\"]\\", ' * (MAX_DEPTH + 1) + "1" + "]" * (MAX_DEPTH + 1), "nested too deeply"),
        ('[{"a": ' * 51 + "1" + "}]" * 51, "nested too deeply"),
        ("1e999", "out of range"),
        ('{"a": [-1e999]}', "out of range"),
        ("Infinity", "out of range"),
        ("[-Infinity]", "out of range"),
        ("NaN", "out of range"),
        ("9" * 21, "out of range"),
        (r'["\"", -' + "9" * 20 + "]", "out of range"),
        ("9" * 1_000_000, "out of range"),
        (r'"\ud800"', "half a surrogate pair"),
        (r'{"\uDFFF": 1}', "half a surrogate pair"),
        (r'[{"a": "x\ud83d"}]', "half a surrogate pair"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b"\xff\xfe", "UTF-8"),
        ("", "line 1, column 1"),
        ("{", "line 1, column 2"),
        ('{"a": 1,\n x}', "line 2, column 2"),
        ('"a\nb"', "control character"),
        ("[] []", "extra data"),
    ],
)
def test_what_a_program_may_have_left_there_is_refused(text: str | bytes, problem: str) -> None:
    with pytest.raises(JsonError, match=re.escape(problem)):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (nested(MAX_DEPTH)[:3] + "1" + nested(MAX_DEPTH)[-3:], [[[1]]]),
        ("[1, -1, 0.5, 1e-999, 1.7e308]", [1, -1, 0.5, 0.0, 1.7e308]),
        (str(2**63), 2**63),
        (str(-(2**63)), -(2**63)),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\udcff.txt"', "\udcff.txt"),  # a byte of a file name
        (r'"C:\\ud800"', r"C:\ud800"),
        (b"\xef\xbb\xbf{}", {}),
        (bytearray('["ä", "\0"]'.replace("\0", r"\u0000"), "utf-8"), ["ä", "\0"]),
        (json.dumps(["["] * 500), ["["] * 500),
        (json.dumps(["9" * 30, "\\", '"']), ["9" * 30, "\\", '"']),
    ],
)
def test_what_ipexctl_writes_is_read(text: str | bytes | bytearray, value: object) -> None:
    assert parse_json(text) == value


def test_the_deepest_text_that_is_read_can_be_written_again() -> None:
    value = parse_json(nested(MAX_DEPTH))
    assert json.dumps(value) == nested(MAX_DEPTH)
    assert parse_json(json.dumps([value[0]])) == value


def test_values_of_templates_may_have_any_number() -> None:
    assert parse_json("[Infinity, 1e999, " + "9" * 40 + "]", any_number=True) == [float("inf")] * 2 + [int("9" * 40)]
    with pytest.raises(JsonError, match="nested too deeply"):
        parse_json("[" * DEEP, any_number=True)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"'])
def test_another_value_than_an_object_is_refused(text: str) -> None:
    with pytest.raises(JsonError, match="not a JSON object"):
        parse_object(text)


def test_a_file_is_regular_and_of_limited_size(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert read_json_file(path) == read_json(path) == {"a": 1}
    with pytest.raises(JsonError, match="larger than 0 MB"):
        read_json_file(path, limit=7)
    path.unlink()
    assert read_json(path) == {}
    os.mkfifo(path)
    with pytest.raises(JsonError, match="not a regular file"):
        read_json_file(path)
    assert read_json(path) == read_json(tmp_path) == {}


def any_json(random_: random.Random, depth: int = 0) -> Any:
    kinds: list[Any] = [None, True, 0, -1, 1e-9, 2**62, "", "a\0b", "\udc80", "é", "[" * random_.randrange(9)]
    kind = random_.randrange(len(kinds) + (0 if depth > 6 else 6))
    if kind < len(kinds):
        return kinds[kind]
    count = random_.randrange(4)
    if kind % 2:
        return [any_json(random_, depth + 1) for _ in range(count)]
    return {f"k{number}": any_json(random_, depth + 1) for number in range(count)}


@pytest.mark.parametrize("seed", range(20))
def test_damaged_text_is_a_value_or_one_kind_of_error(seed: int) -> None:
    random_ = random.Random(seed)
    for _ in range(200):
        value = any_json(random_)
        text = json.dumps(value, ensure_ascii=random_.random() < 0.5).encode("utf-8", "surrogateescape")
        if b"\x80" not in text:
            assert parse_json(text) == value
        damaged = bytearray(text)
        for _ in range(random_.randrange(1, 4)):
            at = random_.randrange(len(damaged) + 1)
            damaged[at : at + random_.randrange(3)] = random_.choice(
                [b"", b"[", b'"', b"\\u", b"\\ud8", b"1e999", b"\xff", b"\0", b"9" * 30, b"{", b","]
            )
        try:
            json.dumps(parse_json(damaged)).encode()
        except JsonError:
            continue


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
    assert decode(Env, {**encode(ENV), "by_rank": None}, "the environment") == ENV._replace(by_rank={})


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
