"""Ages of runs do not depend on the wall clock, and are never too long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ipexctl.node.common.clock import ClockReading, read_clocks
from ipexctl.node.run.run_times import RunTimes, read_times, write_times

DAY = 86400.0


@pytest.mark.parametrize(
    ("looks", "age"),
    [
        # boot, uptime, wall → age of a run that the first look saw
        ([("a", 100, 1000), ("a", 160, 1060)], 60),
        ([("a", 100, 1000), ("a", 160, 1000 + 31 * DAY)], 60),
        ([("a", 100, 1000), ("a", 160, 0)], 60),
        ([("a", 100, 1000), ("a", 50, 2000)], 0),
        ([("a", 100, 1000), ("b", 5, 4600), ("b", 65, 4660)], 3660),
        ([("a", 100, 1000), ("b", 5, 1000 + 31 * DAY), ("b", 65, 1060 + 31 * DAY)], DAY + 60),
        ([("a", 100, 1000), ("b", 5, 10), ("b", 65, 70)], 60),
        # Two machines with one home, in turns: the second one has been up for a year.
        ([("a", 100, 1000), ("b", 365 * DAY, 1010), ("a", 120, 1020), ("b", 365 * DAY + 20, 1030)], 30),
    ],
)
def test_ages_are_those_of_clocks_that_do_not_jump(looks: list[tuple[str, float, float]], age: float) -> None:
    times = RunTimes()
    for boot, uptime, wall in looks:
        times = times.look(ClockReading(boot, uptime, wall), ["r"])
    assert times.ages == {"r": age}


def test_order_is_that_of_the_looks_and_runs_in_progress_stay_young() -> None:
    times = RunTimes().look(ClockReading("a", 0, 1), ["b", "a"]).look(ClockReading("a", 10, 1), ["c", "a", "b"])
    assert list(times.ages.items()) == [("b", 10), ("a", 10), ("c", 0)]
    assert times.renew(["b"]).ages == {"b": 0, "a": 10, "c": 0}
    assert list(times.look(ClockReading("a", 20, 1), ["a"]).ages) == ["a"]


def test_times_are_read_back_and_a_damaged_file_makes_all_runs_young(tmp_path: Path) -> None:
    times = RunTimes().look(read_clocks("boot"), ["r"])
    write_times(str(tmp_path), times)
    assert read_times(str(tmp_path)) == times
    for text in ("", "{", "[]", json.dumps({"boots": {"a": 1}, "seen": {"r": "x"}, "passed": None})):
        (tmp_path / ".ages.json").write_text(text)
        assert read_times(str(tmp_path)) == RunTimes()


def test_only_so_many_boots_are_kept() -> None:
    times = RunTimes()
    for number in range(50):
        times = times.look(ClockReading(str(number), 1, 1), [])
    assert list(times.boots) == [str(number) for number in range(34, 50)]
