"""Trainings that are wrong though they succeed are told with real torch, and right ones are not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from training_lab import Training

from ipexctl.node.common.json_records import decode, parse_json
from ipexctl.node.common.training import ALONE, RankTraining, WrongTraining, find_wrong

pytest_plugins = ["training_lab"]
pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("wrong_cases.py")
KINDS = {name: kind for kind, name in re.findall(r'@wrong\("([\w-]+)"\)\ndef (\w+)', SCRIPT.read_text())}
RIGHT = re.findall(r"@right\ndef (\w+)", SCRIPT.read_text())
TWICE_TWO = ("-n", 4, "--ppn", 2)
"""Ranks of a host sum gradients in shared memory."""


def wrong(training: Training, *words: object) -> tuple[list[str], str]:
    shutil.copy(SCRIPT, training.project)
    summary = training.project / "summary.json"
    ran = training.call("run", "-n", 2, "--omp", "1", "--summary", summary, *words)
    assert ran.rc == 0, ran.err + ran.out
    told = json.loads(summary.read_text())
    kinds = [each["kind"] for each in told["wrong"]]
    assert (told["exchange"] is None) == ALONE.isdisjoint(kinds)
    return kinds, ran.err + ran.out


@pytest.fixture(scope="module", params=[(), ("--fast",)], ids=["plain", "fast"])
def found(training: Training, request: pytest.FixtureRequest) -> Iterator[dict[str, tuple[WrongTraining, ...]]]:
    """Name of a case → what two ranks of one host show, all cases in one run."""
    shutil.copy(SCRIPT, training.project)
    words = ("-n", 2, "--ppn", 2, "--omp", 1, "--oversubscribe", "--plain", *request.param)
    ran = training.call("run", *words, SCRIPT.name, "all", timeout=600)
    assert ran.rc == 0, ran.err + ran.out
    ranks: dict[str, dict[int, RankTraining]] = {}
    for rank, name, text in re.findall(r"(?m)^\[(\d)\] (\w+) (\{.*\})$", ran.out):
        ranks.setdefault(name, {})[int(rank)] = decode(RankTraining, parse_json(text), name)
    yield {name: find_wrong(each, 2, is_over=True) for name, each in ranks.items()}


@pytest.mark.parametrize("case", KINDS)
def test_a_wrong_training_is_told(found: dict[str, tuple[WrongTraining, ...]], case: str) -> None:
    assert [each.kind for each in found[case]] == [KINDS[case]]


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_training_is_not_blamed(found: dict[str, tuple[WrongTraining, ...]], case: str) -> None:
    assert found[case] == ()


@pytest.mark.parametrize(("case", "advice"), [("same_data", "fix"), ("loss_alone", "check"), ("other_rate", "fix")])
def test_a_run_and_why_tell_it(training: Training, case: str, advice: str) -> None:
    kinds, said = wrong(training, SCRIPT.name, case)
    assert kinds == [KINDS[case]]
    assert f"; {advice}: " in said
    why = training.follow("why", "last")
    assert f"; {advice}: " in why.out + why.err


@pytest.mark.parametrize("case", ["same_data", "other_rate"])
def test_a_wrong_training_is_told_where_gradients_are_summed_in_shared_memory(training: Training, case: str) -> None:
    assert wrong(training, *TWICE_TWO, SCRIPT.name, case)[0] == [KINDS[case]]


def test_a_variable_turns_the_checks_off(training: Training) -> None:
    assert wrong(training, "-x", "IPEXCTL_CHECK_TRAINING=0", SCRIPT.name, "same_data")[0] == []
