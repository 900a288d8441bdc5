"""Loss, step, epoch and speed as scripts print them."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from case_table import case_table
from ipexctl.node.common.records import TrainingProgress
from ipexctl.node.run.record.printed import Movement
from ipexctl.ui.run.figure_texts import Curve, Figures, sparkline


@case_table
def test_loss_step_epoch_and_speed_are_parsed(
    line: str,
    loss: float | None,
    step: tuple[int, int | None] | None,
    epoch: tuple[float | None, float | None],
    speed: str,
) -> None:
    figures = Figures()
    figures.read_line(0, line)
    assert (figures.loss, figures.step, figures.epoch, figures.speed) == (loss, step, epoch, speed)


def test_nan_loss_is_kept_as_value_and_not_added_to_the_curve() -> None:
    figures = Figures()
    figures.read_line(0, "loss 1.0")
    figures.read_line(0, "loss nan")
    assert figures.loss is not None
    assert math.isnan(figures.loss)
    assert figures.curve.points == [1.0]


def test_loss_of_the_lowest_rank_is_used() -> None:
    figures = Figures()
    figures.read_line(3, "loss 9")
    figures.read_line(1, "loss 2")
    figures.read_line(3, "loss 9")
    figures.read_line(1, "loss 1")
    assert figures.curve.points == [2.0, 1.0]


def test_loss_repeated_by_a_progress_bar_is_added_once() -> None:
    figures = Figures()
    for text in ("loss=2", "loss=2", "loss=1", "loss=1"):
        figures.read_line(0, text, unfinished=True)
    assert figures.curve.points == [2.0, 1.0]


def test_curve_of_many_steps_keeps_its_shape_in_bounded_memory() -> None:
    curve = Curve()
    for step in range(100_000):
        curve.add(float(step))
    assert len(curve.points) <= 513
    assert curve.points == sorted(curve.points)
    assert sparkline(curve.points, 8) == "▁▂▃▄▅▆▇█"


@given(st.lists(st.floats(-1e12, 1e12), max_size=300), st.integers(0, 80), st.booleans())
def test_sparkline_is_never_wider_than_its_width(points: list[float], width: int, unicode: bool) -> None:
    drawn = sparkline(points, width, unicode=unicode)
    assert len(drawn) == min(width, len(points))
    assert unicode or drawn.isascii()


def test_sparkline_of_equal_values_is_flat() -> None:
    assert sparkline([2.0, 2.0, 2.0], 9) == "▁▁▁"


def test_step_count_of_the_script_overrides_the_progress_bar() -> None:
    figures = Figures()
    figures.read_line(0, "epoch 1:  59%|#####     | 59/100 [00:05<00:05, 10.00it/s]", unfinished=True)
    assert figures.step == (59, 100)
    figures.read_line(0, "step 60/300 loss 1.84")
    figures.read_line(0, "epoch 1:  61%|#####     | 61/100 [00:05<00:05, 10.00it/s]", unfinished=True)
    assert figures.step == (60, 300)


def test_steps_are_those_of_the_bar_that_moves_while_losses_are_printed() -> None:
    """As a Trainer prints them, with an evaluation and a checkpoint at every hundredth step."""
    figures = Figures()
    figures.read_line(0, "100%|####| 5000/5000 [00:01<00:00, 900it/s]")
    for step in range(100, 3001, 100):
        figures.read_line(0, f" 10%|#   | {step}/3000 [00:10<00:20, 98.0it/s]", unfinished=True)
        figures.read_line(0, f"{{'loss': '{2000 / step:.4g}', 'epoch': '0.1'}}")
        assert figures.step == (step, 3000)
        for line in (
            "100%|####| 10/10 [00:00<00:00, 40it/s]",
            "Writing model shards: 100%|##| 1/1 [00:00<00:00, 61it/s]",
        ):
            figures.read_line(0, line)
        assert (figures.step, figures.speed) == ((step, 3000), "98.0 it/s")
    for text in ("100%|###| 3000/3000 [00:30<00:00, 98.0it/s]", "10%|#  | 1/10 [00:00<00:00, 40it/s]", "loss 0.5"):
        figures.read_line(0, text)  # the bar of the evaluation came before the loss, which is on another stream
    figures.read_line(0, "100%|####| 10/10 [00:00<00:00, 40it/s]")
    assert figures.step == (3000, 3000)
    assert len(figures.curve.points) == 31


@pytest.mark.parametrize(
    "title",
    [
        *(
            "Packing train dataset",
            "Tokenizing train dataset",
            "Map (num_proc=2)",
            "Filter",
            "Loading weights",
            "ranks",
        ),
        *("Saving the dataset (1/1 shards)", "Generating train split", "Truncating train dataset"),
        "Adding EOS to train dataset",
    ],
)
def test_bars_before_a_training_are_no_steps(title: str) -> None:
    figures = Figures()
    figures.read_line(0, f"{title}: 100%|###| 800/800 [00:00<00:00, 38397.05 examples/s]")
    figures.read_line(0, f"{title}:  50%|##  | 400/800 [00:00<00:00, 38397.05 examples/s]", unfinished=True)
    assert (figures.step, figures.speed, figures.over(None)) == (None, "", None)
    figures.read_line(0, "  0%|    | 0/60 [00:00<?, ?it/s]", unfinished=True)
    assert (figures.step, figures.speed) == ((0, 60), "")


def test_speed_of_a_bar_without_a_total_is_the_training_s_only_if_its_title_is() -> None:
    figures = Figures()
    figures.read_line(0, "Generating train split: 20 examples [00:00, 17918.25 examples/s]")
    assert (figures.step, figures.speed, figures.over(None)) == (None, "", None)
    figures.read_line(0, "throughput: 120 samples/s")
    assert figures.speed == "120 samples/s"


def test_a_script_s_own_counter_comes_before_the_measured_one() -> None:
    measured, printed = TrainingProgress(127, 139, 0.5, 12, age=1.0), Figures()
    assert printed.over(measured) == measured
    printed.read_line(0, "step 180")
    assert printed.over(measured) == measured, "its total is unknown, and it may count in an epoch"
    assert printed.over(measured._replace(steps=None)) == measured._replace(step=180, steps=None)
    printed.read_line(0, "step 180/200 loss 0.25")
    assert printed.over(measured) == measured._replace(step=180, steps=200, loss=0.25)
    assert printed.over(None) == TrainingProgress(180, 200, 0.25)
    printed.read_line(0, "step 181/200 loss nan")
    assert printed.over(None) == TrainingProgress(181, 200)


def test_a_bar_before_the_first_loss_may_be_of_something_else() -> None:
    printed = Figures()
    printed.read_line(0, " 10%|#   | 10/100 [00:10<00:20, 98.0it/s]", unfinished=True)
    assert printed.over(None) == TrainingProgress(10, 100, speed="98.0 it/s")
    assert printed.over(TrainingProgress(1, 30, left=29)) == TrainingProgress(1, 30, left=29, speed="98.0 it/s")


@pytest.mark.parametrize("steps", [1, 20], ids=["a look at each step", "a look at each twentieth"])
def test_a_number_is_still_after_three_of_its_own_intervals(steps: int) -> None:
    movement = Movement()
    assert movement.see(None, None, 70.0) == (0.0, 0.0)
    for look in range(10):
        assert movement.see(look * steps, 1.0 / (look + 1), 100.0 + look * steps * 10.0)[0] == 0.0
    seen = 100.0 + 9 * steps * 10.0
    for later, still in ((29, False), (31, True)):
        age, usual = movement.see(9 * steps, 0.1, seen + later)
        assert (age, usual, TrainingProgress(age=age, usual=usual).is_still) == (later, 10.0, still)


def test_a_number_that_moves_often_or_moved_once_is_still_after_fixed_times() -> None:
    each = [TrainingProgress(age=age, usual=usual) for usual, age in ((0.01, 4), (0.01, 6), (0, 59), (0, 61), (9, 26))]
    assert [one.is_still for one in each] == [False, True, False, True, False]


def test_a_hostile_line_takes_no_time() -> None:
    begun = time.process_time()
    for text in ("loss ", "loss" + " " * 500, "step 1/", "a_", "9%|", "9%|" + "|" * 50 + "1/", "epoch"):
        Figures().read_line(0, (text * 4000)[:4000])
    assert time.process_time() - begun < 1.0
