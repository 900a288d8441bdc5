"""How the levers of a profile are timed; `tests/stack/test_real_profile.py` times them with torch."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ipexctl.inrank import lever_times


class Torch:
    threads = 4

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, count: int) -> None:
        self.threads = count


@pytest.mark.parametrize(("is_busy", "way"), [(False, (4, time.perf_counter)), (True, (1, time.process_time))])
def test_beside_other_programs_one_thread_is_measured_by_its_processor_time(
    is_busy: bool, way: tuple[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch, seen = Torch(), []

    def measure_fused(torch: Torch, _: object, clock: Any) -> float:
        seen.append((torch.threads, clock))
        return 0.25

    monkeypatch.setattr(lever_times, "measure_fused", measure_fused)
    found = lever_times.measure_levers(torch, {}, 3.0, None, 2.0, is_busy=is_busy)
    assert found == [{"lever": "fused_optimizer", "now": 2.0, "then": 0.5}]
    assert seen == [way]
    assert torch.threads == 4


def test_products_that_cannot_be_repeated_count_as_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"now": 4.0, "autocast": 1.0, "rounded": 6.0}
    monkeypatch.setattr(lever_times, "has_bf16", lambda: True)
    monkeypatch.setattr(lever_times, "is_rounding", lambda _: False)
    monkeypatch.setattr(lever_times, "make_product", lambda *_: ())
    monkeypatch.setattr(lever_times, "fastest", lambda *_: times)
    forwards = {("linear", (), None, "fp32"): [1.0, 5], None: [3.0, 9]}
    times_of_all = {"autocast": 3.25 / 4, "rounded": 4.5 / 4, "widened": 0.0}
    assert lever_times.measure_products(None, forwards, time.perf_counter) == times_of_all
    monkeypatch.setattr(lever_times, "has_bf16", lambda: False)
    assert lever_times.measure_products(None, forwards, time.perf_counter)["autocast"] == 0.0


def test_products_in_half_are_timed_as_they_are_and_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []

    def fastest(runs: dict[str, Any], *_: object) -> dict[str, float]:
        timed.append(list(runs))
        times = {"now": 8.0, "widened": 1.0, "rounded": 4.0}
        return {form: times[form] for form in runs}

    monkeypatch.setattr(lever_times, "has_bf16", lambda: False)
    monkeypatch.setattr(lever_times, "is_rounding", lambda _: False)
    monkeypatch.setattr(lever_times, "make_product", lambda *_: ())
    monkeypatch.setattr(lever_times, "fastest", fastest)
    forwards = {("linear", (), None, "bf16"): [8.0, 5], ("linear", (), None, "fp32"): [2.0, 9]}
    forms = lever_times.measure_products(None, forwards, time.perf_counter)
    assert forms == {"autocast": 0.0, "rounded": 9.0 / 10, "widened": 3.0 / 10}
    assert timed == [["now", "widened"], ["now", "rounded"]]


def test_the_shortest_of_several_turns_counts_and_the_first_warms_up() -> None:
    now = 0.0
    left = {"now": [9.0, 3.0, 2.0, 4.0], "fused": [0.5, 1.0, 1.0, 1.5]}

    def run(form: str) -> None:
        nonlocal now
        now += left[form].pop(0)

    forms = {form: lambda form=form: run(form) for form in left}
    assert lever_times.fastest(forms, time.monotonic() + 60, lambda: now) == {"now": 2.0, "fused": 1.0}
