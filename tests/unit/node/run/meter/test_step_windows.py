"""Windows of the step meter: what is counted, what is not known, how much room it takes, and the figures of a run."""

from __future__ import annotations

from typing import Any

import pytest

from ipexctl.node.common.records import Throughput, TrainingGroup
from ipexctl.node.run.meter.meter_reader import StepRecord
from ipexctl.node.run.meter.rank_notes import RankNotes
from ipexctl.node.run.meter.rates import RankRates, Waiting
from ipexctl.node.run.meter.step_windows import (
    MOST_AT_ONCE,
    RECENT,
    RankThroughput,
    StepWindow,
    WindowMaker,
    run_throughput,
)

approx: Any = pytest.approx
"""In place of a number in a tuple."""

SECOND = 1_000_000_000
PAUSED = 64


THREAD = 77


def record(
    at: float, steps: int, *, samples: int = 0, wait: float = 0.0, reduce: float = 0.0, flags: int = 0
) -> StepRecord:
    waits = int(wait * SECOND), int(reduce * SECOND)
    return StepRecord(int(at * SECOND), steps, samples, *waits, THREAD << 32 | flags)


def training(start: float, seconds: int, *, flags_at: int = -1) -> list[StepRecord]:
    """Two steps a second, of 8 samples each, a fifth of the time for data, a tenth for others."""
    return [
        record(
            start + number / 2,
            number + 1,
            samples=8 * number,
            wait=number / 10,
            reduce=number / 20,
            flags=int(number == flags_at),
        )
        for number in range(2 * seconds + 1)
    ]


def windows_of(records: list[StepRecord], now: float, start: float = 1000) -> list[StepWindow]:
    maker = WindowMaker(start)
    maker.add(records)
    return maker.close_windows(now)


def test_windows_of_a_steady_training() -> None:
    found = windows_of(training(1000, 30), 1030.5)
    assert [(window.number, window.seconds, window.steps, window.samples) for window in found] == [
        (number, 10.0, 20, 160.0) for number in range(3)
    ]
    assert [window.data_wait for window in found] == approx([0.2] * 3)
    assert [window.reduce_wait for window in found] == approx([0.1] * 3)
    assert [window.step_seconds for window in found] == [10.0] * 3


@pytest.mark.parametrize(("now", "count"), [(1009.9, 0), (1010.0, 1), (1019.9, 1), (1020.0, 2)])
def test_a_window_is_closed_when_it_has_ended(now: float, count: int) -> None:
    assert len(windows_of(training(1000, 30), now)) == count


def test_how_often_the_ring_is_read_changes_nothing() -> None:
    records, maker, found = training(1000, 60), WindowMaker(1000), []
    for now in range(1000, 1062, 4):
        maker.add([record for record in records if (now - 4) * SECOND < record.wall <= now * SECOND])
        found += maker.close_windows(now)
    assert found == windows_of(records, 1060)


@pytest.mark.parametrize(("flags_at", "known"), [(-1, [160, 160]), (20, [None, 160]), (21, [160, None])])
def test_samples_and_wait_of_a_window_with_a_flag_are_unknown(flags_at: int, known: list[float | None]) -> None:
    found = windows_of(training(1000, 20, flags_at=flags_at), 1020)
    assert [window.samples for window in found] == known
    assert [window.data_wait is None for window in found] == [samples is None for samples in known]
    assert [window.steps for window in found] == [20, 20]


def test_steps_without_a_loader_have_no_samples() -> None:
    found = windows_of([record(1000, 1), record(1005, 2)], 1010)
    assert (found[0].steps, found[0].samples, found[0].data_wait) == (1, None, None)


def test_steps_longer_than_a_window() -> None:
    records = [record(1000 + 25 * n, n + 1, samples=4 * n, wait=5 * n, reduce=2.5 * n) for n in range(3)]
    found = windows_of(records, 1050)
    assert [window.steps for window in found] == [0, 0, 1, 0, 1]
    assert [window.samples for window in found] == [0, 0, 4, 0, 4]
    assert [window.data_wait for window in found] == approx([None, None, 0.2, None, 0.2])
    assert [window.reduce_wait for window in found] == approx([None, None, 0.1, None, 0.1])


@pytest.mark.parametrize("more", [0, 1, 1000])
def test_after_a_long_pause_the_older_windows_are_left_out(more: int) -> None:
    found = windows_of(training(1000, 1), 1000 + 10 * (MOST_AT_ONCE + more))
    assert (len(found), found[0].number) == (MOST_AT_ONCE, more)


def test_step_that_ends_right_after_a_border_before_a_pause_has_its_complete_length() -> None:
    """As before a lost host: it would look as if a step of 0.5 s had taken 0.05."""
    maker = WindowMaker(1000)
    maker.add(record(1000.55 + number / 2, number + 1, samples=8 * number) for number in range(20))
    usual, *_ = maker.close_windows(1010.0)
    last = maker.close_last(1015.0)[-1]
    assert (last.steps, last.step_seconds) == (1, approx(0.05))
    for window in (usual, last):
        rates = window.rates("sleeps")
        assert (rates.steps_per_s, rates.samples_per_s) == (approx(2.0, rel=0.06), approx(16.0, rel=0.06))


@pytest.mark.parametrize(
    ("begin", "step_seconds"), [(1000.0, [10, 10, 10]), (1004.0, [6, 10, 10]), (1012.0, [0, 8, 10]), (1030.0, [0] * 3)]
)
def test_steps_are_counted_from_the_first_record_on(begin: float, step_seconds: list[float]) -> None:
    found = windows_of(training(begin, int(1030 - begin)), 1030)
    assert [window.step_seconds for window in found] == step_seconds
    assert [window.seconds for window in found] == [10] * 3
    assert [window.rates("sleeps").steps_per_s for window in found] == [2.0 * bool(seconds) for seconds in step_seconds]


def test_in_the_last_window_steps_are_counted_until_the_last_one() -> None:
    maker = WindowMaker(1000)
    maker.add(training(1000, 14))
    found = maker.close_last(1017)
    assert [(window.seconds, window.step_seconds, window.steps) for window in found] == [
        (10, 10, 20),
        (7, approx(4), 8),
    ]


def test_a_training_within_one_window() -> None:
    maker = WindowMaker(1000)
    maker.add(training(1003, 4))
    (window,) = maker.close_last(1009)
    assert (window.seconds, window.step_seconds, window.steps) == (9, 4, 8)


def test_a_script_without_steps_has_windows_without_them() -> None:
    found = WindowMaker(1000).close_last(1015)
    assert [(window.number, window.seconds, window.steps, window.step_seconds) for window in found] == [
        (0, 10, 0, 0),
        (1, 5, 0, 0),
    ]


def test_the_thread_that_steps_and_the_next_end_are_known() -> None:
    maker = WindowMaker(1000)
    assert (maker.thread, maker.next_end) == (0, 1010)
    maker.add(training(1000, 1))
    maker.close_windows(1012)
    assert (maker.thread, maker.next_end) == (THREAD, 1020)


def test_a_window_has_the_newest_group_except_the_first_because_a_group_may_be_made_late() -> None:
    records = [found._replace(training=1 if found.steps < 30 else 2) for found in training(1000, 30)]
    maker = WindowMaker(1000)
    maker.add(records[:25])
    assert [window.group for window in maker.close_windows(1010)] == [0]
    maker.add(records[25:35])
    assert [window.group for window in maker.close_windows(1020)] == [2]
    short = WindowMaker(1000)
    short.add(records[:25])
    assert [window.group for window in short.close_last(1009)] == [1]


def test_a_process_that_used_nothing_has_no_step() -> None:
    maker = WindowMaker(1000)
    maker.add([record(1003, 0)._replace(training=1 << 32)])
    (window,) = maker.close_last(1004)
    assert (window.is_unused, window.steps, window.step_seconds, window.group) == (True, 0, 0.0, 0)


def test_samples_of_smaller_groups_than_planned_count_once() -> None:
    ranks = [Throughput(2.0, 16.0, source="dataloader")] * 4
    found = {seen: run_throughput(ranks, TrainingGroup(4, seen)) for seen in (1, 2, 4)}
    assert {seen: each and each.samples_per_s for seen, each in found.items()} == {1: 16.0, 2: 32.0, 4: 64.0}


def test_records_that_go_back_are_left_out() -> None:
    records = training(1000, 10)
    assert windows_of([*records[:5], record(1000.1, 3), record(1003, 0), *records[5:]], 1010) == windows_of(
        records, 1010
    )


def steady(number: int, steps: int = 20, samples: float | None = 160.0, wait: float | None = 0.2) -> StepWindow:
    return StepWindow(number, 10.0, steps, 10.0, samples, wait, worked=10.0)


def test_figures_are_those_of_the_last_minute_and_at_the_end_of_the_whole_training() -> None:
    rank = RankThroughput()
    for number in range(RECENT):
        rank.add(steady(number, 10, 80.0))
    for number in range(RECENT, 2 * RECENT):
        rank.add(steady(number, 20))
    rank.add(steady(RECENT, 99))  # again, after a reconnect
    assert rank.now(is_over=False) == Throughput(2.0, 16.0, approx(0.2), "dataloader")
    assert rank.now(is_over=True) == Throughput(1.5, 12.0, approx(0.2), "dataloader")


SLEEP = 12.0


def throughput_of(*attempts: list[float]) -> Throughput | None:
    """Of a script whose steps take so many seconds; one that sleeps SLEEP between two steps has a negative number."""
    rank = RankThroughput()
    for lengths in attempts:
        rank.begin_attempt()
        maker, at, records, steps = WindowMaker(1000), 1003.0, [record(1003, 1, samples=8)], 1
        for length in lengths:
            at += max(length, -length * SLEEP)
            steps += length > 0
            if length > 0:
                records.append(record(at, steps, samples=8 * steps))
        maker.add(records)
        for window in maker.close_last(at):
            rank.add(window)
    return rank.now(is_over=True)


FAST = [0.02] * 99


@pytest.mark.parametrize(
    ("attempts", "steps_per_s"),
    [
        ([[*FAST, -1.0]], 50),
        ([[*FAST, -0.1]], 50),
        ([[*FAST, -1.0, *FAST, -5.0, *FAST]], 50),
        ([FAST, [*FAST, -1.0]], 50),
        ([[*FAST, -1.0], [-1.0]], 50),
        ([[0.02] * 9_000, [0.01] * 9_000], 1 / 0.015),
        ([[25.0] * 4], 0.04),
        ([[1.0, 1.5] * 30], 0.8),
        ([[1.0, 15.0] * 30], 0.125),
    ],
)
def test_throughput_is_the_scripts_own_from_its_first_step_to_its_last(
    attempts: list[list[float]], steps_per_s: float
) -> None:
    found = throughput_of(*attempts)
    assert found is not None
    assert found.steps_per_s == pytest.approx(steps_per_s, rel=0.05)
    assert found.samples_per_s == pytest.approx(8 * steps_per_s, rel=0.05)


def test_the_wait_for_data_is_no_pause() -> None:
    maker, rank = WindowMaker(1000), RankThroughput()
    maker.add([record(1000 + n / 10, n + 1, samples=8 * n) for n in range(50)])
    maker.add([record(1025, 51, samples=400, wait=20)])
    for window in maker.close_last(1030):
        rank.add(window)
    assert rank.now(is_over=True) == Throughput(
        approx(50 / 25, rel=0.01), approx(400 / 25, rel=0.01), approx(0.8, rel=0.05), "dataloader"
    )


def test_a_pause_is_no_part_of_the_rate_of_its_window() -> None:
    records = [*(record(1000 + n / 10, n + 1) for n in range(50)), *(record(1017 + n / 10, 51 + n) for n in range(30))]
    assert [window.rates("sleeps").steps_per_s for window in windows_of(records, 1020)] == approx([10, 10], rel=0.05)


def test_profiled_steps_are_no_part_of_the_rate_of_their_window() -> None:
    before = [record(1000 + n / 10, n + 1) for n in range(30)]
    before[-1] = before[-1]._replace(flags=record(0, 0, flags=PAUSED).flags)
    assert not before[-1].unknown
    after = [record(1004 + n / 10, 30 + n) for n in range(61)]
    window, *_ = windows_of([*before, *after], 1010)
    assert window.rates("sleeps").steps_per_s == approx(10, rel=0.02)
    assert window.step_seconds == approx(10 - 1.1, rel=0.02)


def test_a_window_that_ends_while_steps_are_profiled() -> None:
    records = [record(1000 + n / 10, n + 1) for n in range(81)]
    records[-1] = records[-1]._replace(flags=record(0, 0, flags=PAUSED).flags)
    records += [record(1011 + n / 10, 81 + n) for n in range(91)]
    for window in windows_of(records, 1020)[:2]:
        assert window.rates("sleeps").steps_per_s == approx(10, rel=0.05)
        assert window.step_seconds == approx(8 if window.number == 0 else 9, rel=0.05)


def test_a_rank_without_steps_has_no_figures() -> None:
    rank = RankThroughput()
    rank.add(StepWindow(0, 10.0, 0, 0.0, 0.0))
    assert rank.now(is_over=False) is rank.now(is_over=True) is None


@pytest.mark.parametrize(
    ("count", "figures"),
    [(19, Throughput(2.0, 16.0, approx(0.2), "dataloader")), (18, Throughput(2.0, None, None, "steps"))],
)
def test_samples_may_be_unknown_in_one_window_of_twenty(count: int, figures: Throughput) -> None:
    rank = RankThroughput()
    for number in range(count):
        rank.add(steady(number))
    rank.add(steady(count, samples=None, wait=None))
    assert rank.now(is_over=True) == figures
    assert rank.now(is_over=False) == Throughput(2.0, None, None, "steps")


KNOWN, OTHER = Throughput(2.0, 16.0, 0.2, "dataloader"), Throughput(1.0, 8.0, 0.4, "dataloader")
STEPS = Throughput(2.0, None, None, "steps")


@pytest.mark.parametrize(
    ("ranks", "run"),
    [
        ([], None),
        ([None, None], None),
        ([KNOWN], KNOWN),
        ([KNOWN, OTHER], Throughput(1.5, 24.0, approx(0.3), "dataloader")),
        ([KNOWN, STEPS], STEPS),
        ([KNOWN, None], STEPS),
    ],
)
def test_figures_of_a_run(ranks: list[Throughput | None], run: Throughput | None) -> None:
    assert run_throughput(ranks) == run


@pytest.mark.parametrize(
    ("ranks", "tokens", "rate"),
    [
        ([KNOWN, OTHER], [100.0, 200.0], 24 * 150.0),
        ([KNOWN, OTHER], [100.0], None),
        ([KNOWN, OTHER], [100.0, None], None),
        ([KNOWN, STEPS], [100.0, 200.0], None),
    ],
)
def test_tokens_are_those_of_the_samples(
    ranks: list[Throughput], tokens: list[float | None], rate: float | None
) -> None:
    found = run_throughput(ranks, None, tokens)
    assert found is not None
    assert found.tokens_per_s == rate


@pytest.mark.parametrize(
    ("waiting", "wait"), [("sleeps", approx(0.25)), ("shared", 0.1), ("spins", None), ("independent", None)]
)
def test_rates_of_a_window(waiting: Waiting, wait: float | None) -> None:
    window = StepWindow(0, 10.0, 8, 4.0, 64.0, 0.2, 0.1, notes=RankNotes(5.0, 0.45, 0.1, 3.0))
    assert window.rates(waiting) == RankRates(2.0, 16.0, 0.2, 5.0, 0.45, 0.1, wait, 3.0)


def test_what_is_not_known_of_a_window_is_none() -> None:
    assert StepWindow(0, 10.0, samples=0.0).rates("sleeps") == RankRates(0.0)
    busy = StepWindow(0, 10.0, data_wait=0.4, notes=RankNotes(cpu=0.8, queue=0.1))
    assert busy.rates("sleeps").collective_wait == 0.0
    assert busy._replace(data_wait=None).rates("sleeps").collective_wait == approx(0.1)
    assert busy._replace(notes=RankNotes(rss=1.0)).rates("sleeps").collective_wait is None
