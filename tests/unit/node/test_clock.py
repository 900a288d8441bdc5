"""Waits and ages by one clock."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ipexctl.node.common.clock import Countdown, Stopwatch, age_of, wait_until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only sleep moves."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    return now


def test_a_countdown_can_only_be_shortened(clock: list[float]) -> None:
    countdown = Countdown(10)
    clock[0] += 4
    assert (countdown.left, countdown.is_over) == (6, False)
    countdown.shorten(8)
    assert countdown.left == 6
    countdown.shorten(2)
    clock[0] += 2.1
    assert (countdown.left, countdown.is_over) == (0, True)


def test_a_stopwatch_counts_from_its_restart(clock: list[float]) -> None:
    watch = Stopwatch()
    clock[0] += 4
    assert watch.seconds == 4
    watch.restart()
    clock[0] += 1
    assert watch.seconds == 1


@pytest.mark.parametrize(
    ("true_at", "seconds", "is_true", "ends_at"),
    [(100.0, 5, True, 100.0), (102.5, 5, True, 103.0), (200.0, 5, False, 106.0), (100.0, 0, True, 100.0)],
)
def test_a_wait_ends_when_it_is_true_or_the_time_is_over(
    clock: list[float], true_at: float, seconds: float, is_true: bool, ends_at: float
) -> None:
    assert wait_until(lambda: clock[0] >= true_at, seconds, 1.0) is is_true
    assert clock[0] == ends_at


def test_the_age_of_a_file_is_by_its_last_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    os.utime(path, (0, time.time() - 50))
    assert age_of(str(path)) == pytest.approx(50, abs=5)
    with pytest.raises(FileNotFoundError):
        age_of(str(tmp_path / "none"))
