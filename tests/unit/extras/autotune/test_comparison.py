"""Candidates that change the training, and those that do not."""

from __future__ import annotations

import pytest

from ipexctl.extras.autotune.comparison import changes_training, find_losses
from ipexctl.extras.autotune.model import Observation


def losses(*values: float) -> tuple[tuple[str, float], ...]:
    return tuple((f"step {10 * number}", value) for number, value in enumerate(values))


BASE = Observation(1.0, 1.0, 64.0, losses(4.0, 3.0, 2.0, 1.0))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step 10 loss 2.5", (("step 10", 2.5),)),
        ("{'loss': 0.6931, 'grad_norm': 1.5, 'step': 30}", (("step 30", 0.6931),)),
        ("Epoch 1 iteration=7 train_loss=1.5e-3", (("step 7", 0.0015),)),
        ("loss: 3", (("line 1", 3.0),)),
        (" 40%|####  | 12/30 [00:05<00:07, loss=0.25]\r", (("step 12", 0.25),)),
        ("loss 0.5\r", ()),
        ("glossary 12", ()),
        ("no numbers in this loss", ()),
    ],
)
def test_losses_are_found_in_usual_lines(line: str, found: tuple[tuple[str, float], ...]) -> None:
    assert find_losses([line]) == found


@pytest.mark.parametrize(("samples", "is_equal"), [(64.5, True), (65.0, False), (32.0, False)])
def test_samples_a_step_may_differ_by_one_percent(samples: float, is_equal: bool) -> None:
    assert (changes_training(Observation(1.0, 1.0, samples), BASE, [BASE]) == "") == is_equal


@pytest.mark.parametrize(("factor", "is_equal"), [(1.015, True), (1.025, False)])
def test_losses_may_differ_by_rounding(factor: float, is_equal: bool) -> None:
    found = Observation(1.0, 1.0, 64.0, losses(*(factor * value for value in (4.0, 3.0, 2.0, 1.0))))
    assert (changes_training(found, BASE, [BASE]) == "") == is_equal


def test_scripts_without_a_seed_are_compared_by_their_own_spread() -> None:
    other = Observation(1.0, 1.0, 64.0, losses(4.4, 3.3, 2.2, 1.1))
    found = Observation(1.0, 1.0, 64.0, losses(3.6, 2.7, 1.8, 0.9))
    assert changes_training(found, BASE, [BASE])
    assert not changes_training(found, BASE, [BASE, other])


def test_a_single_line_is_no_evidence() -> None:
    assert not changes_training(Observation(1.0, 1.0, 64.0, losses(9.0, 3.0, 2.0, 1.0)), BASE, [BASE])
    assert not changes_training(Observation(1.0, 1.0, 64.0, losses(9.0, 9.0)), BASE, [BASE])


def test_without_known_samples_the_losses_decide() -> None:
    assert not changes_training(Observation(1.0, 1.0), Observation(1.0, 1.0), [])
