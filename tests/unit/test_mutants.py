"""Mutants change one expression each, in every way that `python -m tests.mutants` promises, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutants.__main__ import ROOT, choose, paths_of
from mutants.mutate import KINDS, mutants_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = a < 5", {"comparison: a <= 5", "threshold: 6", "threshold: 4"}),
        ("x = a >= b", {"comparison: a > b"}),
        ("MOST: Final = 600", {"threshold: 601", "threshold: 599"}),
        ("x = a and b", {"and-or: a or b"}),
        ("x = a or b", {"and-or: a and b", "precedence: b or a"}),
        ("if a or b:\n    x()", {"and-or: a and b"}),
        ("x = not a or b", {"and-or: not a and b"}),
        ("x = {**a, **b}", {"precedence: {**b, **a}"}),
        ("x = a if b else c", {"if-else: c if b else a"}),
        ("if a:\n    x()\nelse:\n    y()", {"if-else: not a"}),
        ("def f():\n    if a:\n        return", {"guard: False"}),
        ("if a:\n    x()", set()),
        ("if TYPE_CHECKING:\n    x = a < b", set()),
        ("def f(x: A = 3) -> B: ...", set()),
        ("x = f'{a or b}'", set()),
    ],
)
def test_each_kind_of_change_is_made(text: str, expected: set[str]) -> None:
    assert {f"{mutant.kind}: {mutant.after}" for mutant in mutants_of(text)} == expected


def test_rest_of_the_module_keeps_each_character() -> None:
    text = "é = 'ü'  # a\nif é and (b <\n   c):  # d\n    raise E\n"
    guard = next(mutant for mutant in mutants_of(text) if mutant.kind == "guard")
    assert (guard.line, guard.text) == (2, "é = 'ü'  # a\nif False:  # d\n    raise E\n")


@pytest.mark.parametrize("room", ["doctor", "hosts/nodeset", "node/run"])
def test_mutants_of_a_room_are_valid_and_the_same_for_a_seed(room: str) -> None:
    source = ROOT / "ipexctl" / room
    files = sorted(source.rglob("*.py")) if source.is_dir() else [source.with_suffix(".py")]
    chosen = choose(files, 7, 10, None)
    assert chosen == choose(files, 7, 10, None)
    assert chosen != choose(files, 8, 10, None)
    for place in chosen:
        assert ast.dump(ast.parse(place.mutant.text)) != ast.dump(ast.parse((ROOT / place.path).read_text()))
    assert {place.mutant.kind for place in choose(files, 7, 10_000, None)} <= set(KINDS)
    assert all((ROOT / test).exists() for test in paths_of(room))


def test_each_package_has_tests() -> None:
    packages = [path.parent.name for path in (ROOT / "ipexctl").glob("*/__init__.py")]
    assert "doctor" in packages
    for package in packages:
        assert all(Path(ROOT, test).exists() for test in paths_of(package)), package
