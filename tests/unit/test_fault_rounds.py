"""The driver of random faults: its rounds follow from a seed, and its deliberate breaks still fit the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.breaks import BREAKS, Break, BreakError, broken_package, broken_text
from faults.rounds import all_cases, choose
from lab_helpers import REPOSITORY


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.name.replace(" ", "-"))
def test_break_fits_the_agent_and_names_cases(broken: Break) -> None:
    path = REPOSITORY / "ipexctl/node" / broken.file
    text = path.read_text()
    changed = broken_text(broken, text)
    compile(changed, path, "exec")
    assert changed != text
    assert set(broken.cases) <= {case.name for case in all_cases("", has_memory=True)}


def test_break_whose_text_is_not_there_is_refused() -> None:
    with pytest.raises(BreakError):
        broken_text(Break("b", "run/rank.py", "no such text", "", "", ()), "x = 1\n")
    with pytest.raises(BreakError):
        broken_text(Break("b", "run/rank.py", "x", "y", "", ()), "x = x\n")


def test_break_changes_a_copy_of_the_package(tmp_path: Path) -> None:
    broken = BREAKS[0]
    own = REPOSITORY / "ipexctl/node" / broken.file
    before = own.read_bytes()
    copy = broken_package(broken, tmp_path / "copy") / "ipexctl/node" / broken.file
    assert broken.new in copy.read_text()
    assert broken.old not in copy.read_text()
    assert own.read_bytes() == before


def test_seed_and_number_decide_a_round() -> None:
    cases = all_cases("", has_memory=True)
    names = [choose(cases, 5, number).name for number in range(1, 2 * len(cases) + 1)]
    assert sorted(names[: len(cases)]) == sorted(case.name for case in cases), "each case once before any comes again"
    assert names[: len(cases)] != names[len(cases) :]
    assert choose(cases, 5, len(cases) + 3).name == names[len(cases) + 2]
    assert [choose(cases, 6, number).name for number in range(1, 9)] != names[:8]
