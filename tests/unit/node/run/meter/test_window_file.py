"""The record of a rank's windows: at their place in time, bounded, and whole whatever arrives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ipexctl.node.run.meter.rates import HostRates, RankRates, merge
from ipexctl.node.run.meter.window_file import (
    CAPACITY,
    MAX_FILE,
    SCHEMA,
    WindowWriter,
    decode_host_windows,
    decode_rank_windows,
)

approx: Any = pytest.approx
"""In place of a number in a tuple."""

FULL, DAY = CAPACITY, 8640
RATES = RankRates(1.0, 8.0, 0.25, cpu=0.5)
MOST = RankRates(1.234567, 876.54321, 0.0123456, 12345678901.0, 0.543219, 0.0123, 0.4312, 0.0)
"""What is known on most hosts, in numbers of a usual length."""


def writer_of(path: Path) -> WindowWriter:
    return WindowWriter(str(path), RankRates)


def write(writer: WindowWriter, numbers: range, *, start: float = 0.0) -> None:
    for number in numbers:
        now = start + (number + 1) * 10
        writer.add(number, RATES, now, 1e9 + now)


def known(path: Path) -> list[int]:
    found = decode_rank_windows(path.read_bytes())
    assert found is not None
    return [place for place, entry in enumerate(found.windows) if entry is not None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "0000.meter"


def test_windows_are_read_as_they_were_written(path: Path) -> None:
    write(writer_of(path), range(3))
    found = decode_rank_windows(path.read_bytes())
    assert found is not None
    assert (found.started, found.seconds) == (1e9, 10.0)
    assert found.windows == (RATES,) * 3
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_rank_without_windows_has_no_file(path: Path) -> None:
    writer_of(path).close()
    assert not path.exists()


@pytest.mark.parametrize("days", [1, 30])
def test_64_ranks_take_at_most_15_megabytes_in_a_day_and_in_a_month(path: Path, days: int) -> None:
    writer, host = writer_of(path), WindowWriter(str(path.with_suffix(".host")), HostRates)
    for number in range(0, days * DAY, 1 if days == 1 else 7):
        now = 10.0 * (number + 1)
        writer.add(number, MOST, now, now)
        host.add(number, HostRates(5e7, 1.25e8, 2900.0), now, now)
    found, of_host = decode_rank_windows(path.read_bytes()), decode_host_windows(path.with_suffix(".host").read_bytes())
    assert found is not None
    assert of_host is not None
    for windows in (found, of_host):
        assert windows.seconds * len(windows.windows) == approx(days * 86400, rel=0.02)
    assert of_host.windows[0] == HostRates(5e7, 1.25e8, 2900.0)
    sizes = path.stat().st_size, path.with_suffix(".host").stat().st_size
    assert (sizes[0] <= MAX_FILE, sizes[1] <= MAX_FILE) == (True, True)
    assert 64 * sum(sizes) <= 15e6


@pytest.mark.parametrize(("count", "seconds", "entries"), [(FULL, 10, FULL), (FULL + 1, 20, FULL // 2 + 1)])
def test_each_two_windows_become_one_when_the_file_is_full(path: Path, count: int, seconds: int, entries: int) -> None:
    write(writer_of(path), range(count))
    found = decode_rank_windows(path.read_bytes())
    assert found is not None
    assert (found.seconds, len(found.windows)) == (seconds, entries)
    assert set(found.windows) == {RATES}


def test_windows_that_share_an_entry_are_averaged(path: Path) -> None:
    writer = writer_of(path)
    write(writer, range(0, FULL + 1, FULL // 10))
    for number, steps in ((FULL + 2, 1.0), (FULL + 3, 3.0), (FULL + 3, 3.0)):
        writer.add(number, RATES._replace(steps_per_s=steps), 10 * number + 10, 0)
    found = decode_rank_windows(path.read_bytes())
    assert found is not None
    assert found.windows[FULL // 2 + 1] == RATES._replace(steps_per_s=2.0)


def test_windows_of_a_rank_that_was_cut_off_are_unknown_and_may_arrive_twice(path: Path) -> None:
    writer = writer_of(path)
    for number in (0, 1, 4, 1, 4, 5):
        writer.add(number, RATES, 10 * number + 10, 1e9)
    assert known(path) == [0, 1, 4, 5]
    assert len(path.read_text().splitlines()) == 5


@pytest.mark.parametrize(("start", "place"), [(30.0, 3), (44.0, 4), (46.0, 5), (0.0, 0)])
def test_the_next_attempt_is_at_its_place_in_time(path: Path, start: float, place: int) -> None:
    writer = writer_of(path)
    write(writer, range(2))
    writer.begin_attempt()
    write(writer, range(2), start=start)
    assert known(path) == sorted({0, 1, place, place + 1})


def test_a_full_disk_leaves_windows_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(path)
    write(writer, range(1))

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        write(writer, range(1, 3))
    write(writer, range(3, 4))
    assert known(path) == [0, 3]


HEADER = f'{{"schema": "{SCHEMA}", "started": 1, "seconds": 10, "fields": ["newer", "steps_per_s"]}}'


@pytest.mark.parametrize(
    "data",
    [
        "",
        "short",
        "ipexrnk9",
        "[" * 100_000,
        HEADER.replace(SCHEMA, "ipexctl.windows/2"),
        HEADER.replace("10", "0"),
        HEADER.replace("10", "NaN"),
        HEADER.replace('"fields"', '"other"'),
    ],
)
def test_a_damaged_file_is_none(data: str) -> None:
    assert decode_rank_windows(data.encode()) is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{}",
        "[2, 1",
        "[2]",
        "[2, 1]",
        "[2, 1, 1, 1]",
        "[-1, 1, 1]",
        "[true, 1, 1]",
        "[2160, 1, 1]",
        '[2, "1", 1]',
        "[2, 1, -1]",
        "[2, 1, NaN]",
        "[2, 1, 1e999]",
        "[2, 1, {}]",
        "[2, 1, " + "[" * 1000,
    ],
)
def test_a_line_that_cannot_be_read_is_left_out(line: str) -> None:
    found = decode_rank_windows("\n".join((HEADER, "[0, 5, 1.5]", line, "[1, null, null]", "")).encode())
    assert found is not None
    assert found.windows == (RankRates(1.5), RankRates())


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        (RankRates(2, 8, 0.2, cpu=0.3), RankRates(4, 16, 0.4, cpu=0.5), RankRates(3, 12, approx(0.3), cpu=0.4)),
        (RankRates(2, 8, 0.2), RankRates(4, None, None, cpu=0.5), RankRates(3, 8, 0.2, cpu=0.5)),
    ],
)
def test_two_windows_become_one(first: RankRates, second: RankRates, merged: RankRates) -> None:
    assert merge([first, second]) == merged
