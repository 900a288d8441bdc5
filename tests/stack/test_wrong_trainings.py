"""Trainings that are wrong though they succeed are told with real torch, and right ones are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from training_lab import Training

from ipexctl.node.common.training import ALONE

pytest_plugins = ["training_lab"]
pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("wrong_cases.py")
KINDS = {
    "same_data": "same-data",
    "no_set_epoch": "same-order",
    "loss_alone": "no-exchange",
    "past_ddp": "bypassed",
    "other_parameters": "no-gradients",
    "statistics": "statistics",
    "never_synced": "no-sync",
    "groups_of_one": "small-groups",
    "rate_zero": "unchanged",
    "times_zero": "zero-gradients",
    "drawn_alike": "same-losses",
    "averaged_twice": "summed-twice",
    "starts_apart": "apart",
}
RIGHT = (
    *("ddp", "by_hand", "local_steps", "averaged_at_the_end", "fsdp", "sharded_layers", "accumulated", "gan"),
    *("moving_average", "evaluated", "whole_set", "noise", "a_seed_each", "drawn", "own_hook", "warmed_up"),
    "drawn_once",
)
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


@pytest.mark.parametrize("case", KINDS)
def test_a_wrong_training_is_told(training: Training, case: str) -> None:
    kinds, said = wrong(training, SCRIPT.name, case)
    assert kinds == [KINDS[case]]
    assert "; fix: " in said
    why = training.follow("why", "last")
    assert "; fix: " in why.out + why.err


@pytest.mark.parametrize("case", ["same_data", "statistics"])
def test_a_wrong_training_is_told_where_gradients_are_summed_in_shared_memory(training: Training, case: str) -> None:
    assert wrong(training, *TWICE_TWO, SCRIPT.name, case)[0] == [KINDS[case]]


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_training_is_not_blamed(training: Training, case: str) -> None:
    assert wrong(training, SCRIPT.name, case)[0] == []


def test_a_variable_turns_the_checks_off(training: Training) -> None:
    assert wrong(training, "-x", "IPEXCTL_CHECK_TRAINING=0", SCRIPT.name, "same_data")[0] == []
