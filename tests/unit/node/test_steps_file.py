"""The record of a rank's windows: at their place in time, bounded, and whole whatever arrives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ipexctl.node.run.step_windows import CAPACITY, StepWindow, StoredWindow
from ipexctl.node.run.steps_file import HEADER_SIZE, StepsWriter, read_steps

approx: Any = pytest.approx
"""In place of a number in a tuple."""

DAY, WEEK = 8640, 7 * 8640


def window(number: int, steps: int = 10, samples: float | None = 80.0) -> StepWindow:
    return StepWindow(number, 10.0, steps, samples, 0.25, 2.0)


def write(writer: StepsWriter, numbers: range, *, start: float = 0.0) -> None:
    for number in numbers:
        now = start + (number + 1) * 10
        writer.add(window(number), now, 1e9 + now)


def known(path: Path) -> list[int]:
    found = read_steps(str(path))
    assert found is not None
    return [place for place, entry in enumerate(found.windows) if entry is not None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0000.steps"


def test_windows_are_read_as_they_were_written(path: Path) -> None:
    write(StepsWriter(str(path)), range(3))
    found = read_steps(str(path))
    assert found is not None
    assert (found.started, found.seconds) == (1e9, 10.0)
    assert found.windows == (StoredWindow(1.0, 8.0, 0.25, 2.0),) * 3
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_rank_without_steps_has_no_file(path: Path) -> None:
    StepsWriter(str(path)).close()
    assert read_steps(str(path)) is None
    assert not path.exists()


@pytest.mark.parametrize("days", [1, 30])
def test_64_ranks_take_at_most_5_megabytes_in_a_day_and_in_a_month(path: Path, days: int) -> None:
    writer = StepsWriter(str(path))
    write(writer, range(0, days * DAY, 1 if days == 1 else 7))
    writer.close()
    assert path.stat().st_size <= HEADER_SIZE + 8 * CAPACITY
    assert 64 * path.stat().st_size <= 5e6
    found = read_steps(str(path))
    assert found is not None
    assert found.seconds * len(found.windows) == approx(days * 86400, rel=0.02)


@pytest.mark.parametrize(("count", "seconds", "entries"), [(DAY, 10, DAY), (DAY + 1, 20, DAY // 2 + 1)])
def test_each_two_windows_become_one_when_the_file_is_full(path: Path, count: int, seconds: int, entries: int) -> None:
    write(StepsWriter(str(path)), range(count))
    found = read_steps(str(path))
    assert found is not None
    assert (found.seconds, len(found.windows)) == (seconds, entries)
    assert set(found.windows) == {StoredWindow(1.0, 8.0, 0.25, 2.0)}


def test_windows_that_share_an_entry_are_averaged(path: Path) -> None:
    writer = StepsWriter(str(path))
    write(writer, range(0, DAY + 1, DAY // 10))
    for number, steps in ((DAY + 2, 10), (DAY + 3, 30), (DAY + 3, 30), (DAY + 1, 99)):
        writer.add(window(number, steps), 10 * number + 10, 0)
    found = read_steps(str(path))
    assert found is not None
    assert found.windows[DAY // 2 + 1] == StoredWindow(approx(2.0, rel=1e-3), 8.0, 0.25, 2.0)


def test_windows_of_a_rank_that_was_cut_off_are_unknown_and_may_arrive_late_or_twice(path: Path) -> None:
    writer = StepsWriter(str(path))
    for number in (0, 1, 4, 2, 4):
        writer.add(window(number), 10 * number + 10, 1e9)
    assert known(path) == [0, 1, 2, 4]


@pytest.mark.parametrize(("start", "place"), [(30.0, 3), (44.0, 4), (46.0, 5), (0.0, 0)])
def test_the_next_attempt_is_at_its_place_in_time(path: Path, start: float, place: int) -> None:
    writer = StepsWriter(str(path))
    write(writer, range(2))
    writer.begin_attempt()
    write(writer, range(2), start=start)
    assert known(path) == sorted({0, 1, place, place + 1})


def test_a_full_disk_leaves_windows_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = StepsWriter(str(path))
    write(writer, range(1))

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        write(writer, range(1, 3))
    write(writer, range(3, 4))
    assert known(path) == [0, 3]


@pytest.mark.parametrize("data", [b"", b"short", b"ipexstp9" + bytes(40), bytes(100)])
def test_a_damaged_file_is_none(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    assert read_steps(str(path)) is None


def test_a_part_of_an_entry_is_left_out(path: Path) -> None:
    write(StepsWriter(str(path)), range(2))
    path.write_bytes(path.read_bytes()[:-3])
    assert known(path) == [0]
