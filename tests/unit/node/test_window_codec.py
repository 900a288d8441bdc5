"""Windows in their file: the precision, figures that are not known, and two windows that share an entry."""

from __future__ import annotations

from typing import Any

import pytest

from ipexctl.node.run.window_codec import HOST_WINDOWS, RANK_WINDOWS, HostRates, RankRates

approx: Any = pytest.approx
"""In place of a number in a tuple."""


@pytest.mark.parametrize("value", [0.001, 0.1, 1.0, 3.21, 410.0, 65_504.0, 1e6, 4e9, 2e15])
def test_numbers_are_kept_to_a_part_in_two_thousand(value: float) -> None:
    window = RANK_WINDOWS.decode(RANK_WINDOWS.encode(RankRates(value, value, cores=value, rss=value)))
    kept = approx(value, rel=4e-4)
    assert window == RankRates(kept, kept, cores=kept, rss=kept)


@pytest.mark.parametrize("value", [0.0625, 3.0, 1e6, 7e13])
def test_rough_numbers_are_kept_to_a_twelfth(value: float) -> None:
    window = RANK_WINDOWS.decode(RANK_WINDOWS.encode(RankRates(read_per_s=value, major_faults_per_s=value)))
    assert window == RankRates(read_per_s=approx(value, rel=0.08), major_faults_per_s=approx(value, rel=0.08))


@pytest.mark.parametrize("share", [0.0, 0.005, 0.25, 1.0])
def test_shares_are_kept_in_two_hundredths(share: float) -> None:
    assert RANK_WINDOWS.decode(RANK_WINDOWS.encode(RankRates(data_wait=share))) == RankRates(data_wait=share)


@pytest.mark.parametrize(("value", "kept"), [(0.0, 0.0), (-1.0, 0.0), (1e-9, 2**-12), (1e99, 2.0**52)])
def test_numbers_outside_the_range_are_the_nearest_inside(value: float, kept: float) -> None:
    window = RANK_WINDOWS.decode(RANK_WINDOWS.encode(RankRates(value, data_wait=value)))
    assert window == RankRates(kept, data_wait=min(1.0, max(0.0, round(value))))


@pytest.mark.parametrize(
    "window",
    [
        None,
        RankRates(),
        RankRates(0.0, 0.0, 0.0, cores=0.0, major_faults_per_s=0.0),
        RankRates._make([1.0] * 3 + [True] + [1.0] * 14),
    ],
)
def test_what_is_not_known_stays_so(window: RankRates | None) -> None:
    entry = RANK_WINDOWS.encode(window)
    assert len(entry) == RANK_WINDOWS.size
    assert RANK_WINDOWS.decode(entry) == window
    assert any(entry) == (window is not None)


@pytest.mark.parametrize("rates", [HostRates(), HostRates._make([1.0] * 20)])
def test_each_field_of_a_host_has_its_place(rates: HostRates) -> None:
    entry = HOST_WINDOWS.encode(rates)
    assert len(entry) == HOST_WINDOWS.size
    assert HOST_WINDOWS.decode(entry) == (rates if any(entry) else None)


def test_any_bytes_are_a_window() -> None:
    for byte in (1, 201, 202, 255):
        for kind in (RANK_WINDOWS, HOST_WINDOWS):
            assert kind.decode(bytes([byte]) * kind.size) is not None


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        (None, None, None),
        (None, RankRates(2.0), RankRates(2.0)),
        (RankRates(2, 8, 0.2, cores=3), RankRates(4, 16, 0.4, cores=5), RankRates(3, 12, approx(0.3), cores=4)),
        (RankRates(2, 8, 0.2, cores=3), RankRates(4, None, None, cores=5), RankRates(3, None, None, cores=4)),
        (RankRates(2, 8, 0.2, cores=3), RankRates(0, 0), RankRates(1, 4, 0.2, cores=3)),
        (RankRates(2, 8, by_metric=True), RankRates(2, by_metric=True), RankRates(2, 8, by_metric=True)),
    ],
)
def test_two_windows_become_one(first: RankRates | None, second: RankRates | None, merged: RankRates | None) -> None:
    assert RANK_WINDOWS.merge([first, second]) == merged


def test_the_lowest_frequency_of_two_windows_is_kept() -> None:
    merged = HOST_WINDOWS.merge(
        [HostRates(0.2, mhz=3000.0, lowest_mhz=2800.0), HostRates(0.4, mhz=2000.0, lowest_mhz=800.0)]
    )
    assert merged == HostRates(approx(0.3), mhz=2500.0, lowest_mhz=800.0)


def test_an_odd_number_of_windows_is_merged() -> None:
    entries = [RANK_WINDOWS.encode(RankRates(float(rate))) for rate in (1, 3, 8)]
    merged, size = RANK_WINDOWS.merge_pairs(b"".join(entries)), RANK_WINDOWS.size
    assert [RANK_WINDOWS.decode(merged[at : at + size]) for at in (0, size)] == [
        RankRates(approx(2, rel=1e-3)),
        RankRates(8.0),
    ]
