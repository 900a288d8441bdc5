"""A trial: when it has seen enough, and how fast it was."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ipexctl.node.run.meter_reader import StepRecord
from ipexctl.node.run.trial_meter import LONGEST, TrialMeter, is_warm

SAMPLES = 64


def records(lengths: Sequence[float], *, flags: int = 0, last: int = SAMPLES) -> list[StepRecord]:
    """A record for each step, the first at 1 s."""
    found, wall, samples = [StepRecord(10**9, 1, SAMPLES, 0, 0, 0)], 10**9, SAMPLES
    for number, length in enumerate(lengths, 2):
        wall += round(length * 10**9)
        samples += last if number == len(lengths) + 1 else SAMPLES
        found.append(StepRecord(wall, number, samples, 0, 0, flags))
    return found


def meter(lengths: Sequence[float], **changes: int) -> TrialMeter:
    made = TrialMeter()
    made.add(records(lengths, **changes))
    return made


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([1.0] * 4, False),
        ([1.0] * 5, True),
        ([3.0, 2.0, 1.0, 1.0, 1.0], False),
        ([1.0, 1.0, 1.0, 1.0, 1.049], True),
        ([1.0, 1.0, 1.0, 1.0, 1.051], False),
        ([0.8, 1.2, 1.0, 0.9, 1.1, 0.8, 1.2, 1.0, 0.9, 1.1], True),
        ([1.8, 2.2, 2.0, 1.9, 2.1, 0.8, 1.2, 1.0, 0.9, 1.1], False),
    ],
)
def test_warm_up_is_over_when_steps_agree(lengths: list[float], expected: bool) -> None:
    assert is_warm(lengths) == expected


@pytest.mark.parametrize(
    ("steps", "length", "is_done"), [(24, 0.3, False), (25, 0.3, True), (25, 0.2, False), (30, 0.2, True)]
)
def test_twenty_steps_and_five_seconds_are_measured_after_warm_up(steps: int, length: float, is_done: bool) -> None:
    found = meter([length] * steps).figures(1.0 + steps * length)
    assert found is not None
    assert found.is_done == is_done
    assert found.is_warm
    assert found.steps == steps - 5
    assert found.rate == pytest.approx(1 / length)


def test_slow_first_steps_do_not_count() -> None:
    found = meter([9.0, 4.0, 2.0, *[0.5] * 30]).figures(40.0)
    assert found is not None
    assert found.rate == pytest.approx(2.0)


def test_after_a_minute_the_second_half_counts_of_steps_that_never_agree() -> None:
    lengths = [1.3**number for number in range(14)]
    made = meter(lengths)
    found = made.figures(1.0 + LONGEST)
    assert found is not None
    assert found.is_done
    assert not found.is_warm
    assert 0 < found.steps < len(lengths)


def test_nothing_is_known_before_the_first_step() -> None:
    assert TrialMeter().figures(1000.0) is None


@pytest.mark.parametrize(("seconds", "is_done"), [(LONGEST - 1, False), (LONGEST, True)])
def test_a_training_without_a_step_is_done_a_minute_after_it_began(seconds: float, is_done: bool) -> None:
    made = TrialMeter()
    made.start(0.0)
    made.on_torch()
    assert made.figures(500.0) is None
    made.add([StepRecord(500 * 10**9, 0, 0, 0, 0, 0)])
    found = made.figures(500.0 + seconds)
    assert found is not None
    assert (found.is_done, found.has_stepped) == (is_done, False)


def test_a_command_without_torch_is_done_a_minute_after_its_start_unless_it_steps() -> None:
    made = TrialMeter()
    made.start(1.0)
    assert made.waits_for_torch
    found = made.figures(1.0 + LONGEST)
    assert found is not None
    assert (found.is_done, found.has_stepped) == (True, False)
    made.add(records([0.5] * 5))
    found = made.figures(4.0)
    assert found is not None
    assert (found.is_done, found.has_stepped) == (False, True)


def test_samples_a_step_are_the_median_and_none_if_a_record_does_not_know_them() -> None:
    known, unknown = meter([0.5] * 30, last=3).figures(20.0), meter([0.5] * 30, flags=1).figures(20.0)
    assert known is not None
    assert known.samples_per_step == SAMPLES
    assert unknown is not None
    assert unknown.samples_per_step is None


def test_fast_steps_share_records() -> None:
    made = TrialMeter()
    made.add([StepRecord(10**9 + number * 20_000_000, 10 * number, 0, 0, 0, 0) for number in range(1, 300)])
    found = made.figures(7.0)
    assert found is not None
    assert found.rate == pytest.approx(500.0)
    assert found.is_done


def test_time_since_the_last_step_shows_a_hang() -> None:
    found = meter([0.5] * 10).figures(36.0)
    assert found is not None
    assert found.since_step == pytest.approx(30.0)


def test_printed_values_count_with_a_metric() -> None:
    made = TrialMeter(has_metric=True)
    made.start(0.0)
    assert made.figures(99.0) is None
    made.add(records([0.5] * 40))
    early = made.figures(30.0)
    assert early is not None
    assert (early.has_stepped, early.is_done) == (False, False)
    for number in range(12):
        made.add_metric(float(number), 100.0)
    found = made.figures(12.0)
    assert found is not None
    assert found.rate == 100.0
    assert found.is_done
