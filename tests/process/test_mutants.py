"""Mutants change one expression each, in every way that `python -m tools.mutants` promises, and nothing else."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from case_table import case_table
from mutants.__main__ import ROOT, Place, choose, files_of, near, paths_of, stages
from mutants.fixed import FILE, read_fixed
from mutants.mutate import KINDS, is_in_function, mutants_of


@pytest.mark.core
@case_table
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


def test_lines_outside_functions_count_when_the_module_is_imported() -> None:
    text = "A = 1\nclass C:\n    B: int = 2\n    def f(self):\n        return 3\nD = 4\n"
    assert [is_in_function(text, line) for line in range(1, 7)] == [False, False, False, True, True, False]


def test_tests_that_reach_the_function_come_first_and_others_only_for_a_constant() -> None:
    path = Path("ipexctl/hosts/select.py")
    (mutant, *_) = mutants_of((ROOT / path).read_text())
    close = near(path)
    assert "tests/unit/hosts/test_hosts_select.py" in close
    assert "tests/unit/launch/test_binding.py" not in close
    # A module that only a helper beside the tests imports.
    assert "tests/unit/doctor/test_doctor_rules.py" in near(Path("ipexctl/facts/facts.py"))
    room, also = files_of(["tests/unit/hosts"]), ("tests/process/test_a.py", "tests/process/test_select.py")
    place = Place(path, mutant)
    assert stages(place, ["a::b"], room, also) == (("a::b",), also[::-1])
    first, rest, last = stages(place, None, room, also)
    assert (first, last) == (close, also[::-1])
    assert {*first, *rest} >= {*room}
    assert not {*first} & {*rest}


def test_tests_that_call_a_function_are_found(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("A = 1\ndef f():\n    return g()\ndef g():\n    return A\n")
    (tmp_path / "test_it.py").write_text(
        "import module, threading, time\n"
        "def test_both():\n    time.sleep(0.1)\n    threading.Thread(target=module.f).start()\n"
        "def test_one():\n    module.g()\ndef test_none():\n    assert module.A\n"
    )
    file = str(tmp_path / "module.py")
    (tmp_path / "lines").write_text(json.dumps({file: [1, 3, 5]}))
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tools"), "IPEXCTL_TESTS_REACHED": str(tmp_path / "lines")}
    argv = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "-p", "mutants.reached"]
    subprocess.run(argv, cwd=tmp_path, env=env, check=True, stdout=subprocess.DEVNULL)
    assert json.loads((tmp_path / "lines").read_text()) == {
        f"{file}:1": [],
        f"{file}:3": ["test_it.py::test_both"],
        f"{file}:5": ["test_it.py::test_one", "test_it.py::test_both"],
    }


def test_fixed_mutants_apply_and_name_tests_that_exist() -> None:
    for mutant in read_fixed():
        assert mutant.apply((ROOT / mutant.file).read_text()) is not None, f"write the new text to {FILE}: {mutant}"
        file, _, function = mutant.test.partition("::")
        assert f"\ndef {function}(" in (ROOT / file).read_text(), f"name another test in {FILE}: {mutant}"
    assert {mutant.file for mutant in read_fixed("node/run/decisions/verdict")} == {
        "ipexctl/node/run/decisions/verdict.py"
    }
    assert read_fixed("node/ru") == []


def test_each_package_has_tests() -> None:
    packages = [path.parent.name for path in (ROOT / "ipexctl").glob("*/__init__.py")]
    assert "doctor" in packages
    for package in packages:
        assert all(Path(ROOT, test).exists() for test in paths_of(package)), package
