"""The driver of random faults: rounds follow from a seed, the judge notices, and deliberate breaks fit the agent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from faults.__main__ import KINDS
from faults.breaks import BREAKS, Break, BreakError, broken_package
from faults.judge import ExpectedResult, FoundResult, judge
from faults.rounds import Played, choose, show
from faults.run import CASES
from lab_helpers import REPOSITORY


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.name.replace(" ", "-"))
def test_break_fits_the_agent_and_names_cases(broken: Break) -> None:
    path = REPOSITORY / "ipexctl/node" / broken.file
    text = path.read_text()
    changed = broken.change(text)
    compile(changed, path, "exec")
    assert changed != text
    assert set(broken.cases) <= {case.name for case in CASES}


def test_break_whose_text_is_not_there_is_refused() -> None:
    for text in ("y = 1\n", "x = x\n"):
        with pytest.raises(BreakError):
            replace(BREAKS[0], old="x").change(text)


def test_break_changes_a_copy_of_the_package(tmp_path: Path) -> None:
    broken = BREAKS[0]
    own = REPOSITORY / "ipexctl/node" / broken.file
    before = own.read_bytes()
    copy = broken_package(broken, tmp_path / "copy") / "ipexctl/node" / broken.file
    assert broken.new in copy.read_text()
    assert broken.old not in copy.read_text()
    assert own.read_bytes() == before


def test_seed_and_number_decide_a_round() -> None:
    cases = CASES
    names = [choose(cases, 5, number).name for number in range(1, 2 * len(cases) + 1)]
    assert sorted(names[: len(cases)]) == sorted(case.name for case in cases), "each case once before any comes again"
    assert names[: len(cases)] != names[len(cases) :]
    assert choose(cases, 5, len(cases) + 3).name == names[len(cases) + 2]
    assert [choose(cases, 6, number).name for number in range(1, 9)] != names[:8]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_cases_of_different_names(kind: str) -> None:
    names = [case.name for case in KINDS[kind].cases]
    assert names
    assert len(set(names)) == len(names)


FIRST = {"kind": "signal", "rank": 2, "host": "node2", "signal": 9, "oom": {"by": "cgroup", "used": 7}}
EXPECTED = ExpectedResult("failed", 137, "signal", 2, "node2", "killed|ended", more=(("signal", 9),))


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (FoundResult(137, "failed", "rank 2 was killed", FIRST), ""),
        (FoundResult(137, "failed", "", FIRST, "it ended"), ""),
        (FoundResult(1, "failed", "killed", FIRST), "the call ended with 1 and not 137"),
        (FoundResult(137, "lost", "killed", FIRST), "'lost', 'signal', 2"),
        (FoundResult(137, "failed", "killed", {**FIRST, "rank": 1}), "'signal', 1, 'node2'"),
        (FoundResult(137, "failed", "", FIRST), "nobody says"),
        (FoundResult(137, "failed", "killed", {**FIRST, "signal": 15}), "signal is 15"),
    ],
)
def test_judge_says_what_differs(found: FoundResult, wrong: str) -> None:
    if wrong:
        with pytest.raises(AssertionError, match=wrong):
            judge(EXPECTED, found)
    else:
        assert judge(EXPECTED, found) is EXPECTED


def test_judge_finds_the_result_that_fits() -> None:
    other = ExpectedResult("ok", None)
    both = ExpectedResult("failed", 1, "oom", is_any_rank=True, more=(("oom", {"by": "cgroup"}),), or_else=(other,))
    assert judge(both, FoundResult(0, "ok", "", {}, recorded_code=0)) is other
    assert judge(both, FoundResult(1, "failed", "", {**FIRST, "kind": "oom"})) is both


@pytest.mark.parametrize(
    ("wrong", "excuse", "goal", "is_well"),
    [(0, "", 1.0, True), (1, "", 1.0, False), (1, "", 0.9, True), (2, "", 0.9, False), (2, "disturbed", 1.0, True)],
)
def test_wrong_rounds_of_a_case_decide_unless_they_have_an_excuse(
    wrong: int, excuse: str, goal: float, is_well: bool
) -> None:
    played = [Played(n, "case", "", "differs" if n <= wrong else "", excuse, 1.0, {}) for n in range(1, 12)]
    assert show(played, goal)[1] == is_well
