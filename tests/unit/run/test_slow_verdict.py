"""The slow rank, from windows as the step meter records them: both sides of each threshold."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from slow_helpers import BEGIN, CALM, HEALTHY, changed, only, ranks_of, run_of, setup_of, steady, verdict_of

from case_table import case_table
from ipexctl.node.common.medians import medians_of_others
from ipexctl.node.run.meter.rates import RankRates, waiting_of
from ipexctl.node.run.meter.window_file import RankWindows
from ipexctl.run.why.slow_verdict import LinkFinding, find_slow_ranks
from ipexctl.run.why.timeline import training_rows
from ipexctl.run.windows import RunWindows


def slower(more: float) -> RankRates:
    return changed(HEALTHY, cpu=(HEALTHY.cpu or 0) + more)


def test_rank_is_slow_from_five_percent_of_a_step_on() -> None:
    found = only(verdict_of(HEALTHY, HEALTHY, slower(0.051), HEALTHY))
    assert (found.rank, found.host, found.is_current, found.windows) == (2, "node3", True, 4)
    assert found.percent == pytest.approx(5.1)
    assert found.cost_percent == pytest.approx(5.1)
    assert found.cost_seconds == pytest.approx(0.051 * 40)
    assert verdict_of(HEALTHY, HEALTHY, slower(0.049), HEALTHY).findings == ()


def test_two_ranks_are_enough() -> None:
    assert only(verdict_of(slower(0.1), HEALTHY)).rank == 0
    assert only(verdict_of(HEALTHY, slower(0.1))).rank == 1


def test_three_windows_in_a_row() -> None:
    slow, fine = slower(0.2), HEALTHY

    def findings(*windows: RankRates | None) -> int:
        run = run_of(ranks_of([fine, *windows], [fine] * (1 + len(windows))))
        return len(find_slow_ranks(run, setup_of(2)).findings)

    assert findings(slow, slow, slow) == 1
    assert findings(slow, slow, fine, slow, slow) == 0
    assert findings(slow, slow, None, slow, slow) == 0  # of that rank nothing is known in between


def test_one_window_that_is_not_slow_ends_nothing_and_two_do() -> None:
    def found(*windows: bool) -> list[tuple[int, bool]]:
        run = run_of(ranks_of([HEALTHY, *[slower(0.2 * slow) for slow in windows]], [HEALTHY] * (1 + len(windows))))
        return [(each.windows, each.is_current) for each in find_slow_ranks(run, setup_of(2)).findings]

    assert found(True, True, True, False, True) == [(4, True)]
    assert found(True, True, True, False, False, True) == [(3, False)]
    assert found(True, True, False, True, True) == []


@pytest.mark.parametrize(("after", "is_current"), [(0, True), (1, True), (2, False)])
def test_slow_rank_of_earlier_is_no_current_one(after: int, is_current: bool) -> None:
    run = run_of(ranks_of([HEALTHY, *[slower(0.2)] * 3, *[HEALTHY] * after], [HEALTHY] * (4 + after)))
    found = only(find_slow_ranks(run, setup_of(2)))
    assert (found.is_current, found.start, found.end) == (is_current, BEGIN + 10, BEGIN + 40)


def test_a_rank_that_is_slow_for_another_cause_in_the_end_is_judged_by_that() -> None:
    waits = changed(HEALTHY, cpu=0.69, data_wait=0.31)
    run = run_of(ranks_of([HEALTHY, *[slower(0.25)] * 4, *[waits] * 3], [HEALTHY] * 8))
    found = find_slow_ranks(run, setup_of(2)).findings
    assert [(each.cause.kind, each.windows, each.is_current) for each in found] == [
        ("data", 3, True),
        ("more-work", 4, False),
    ]
    run = run_of(ranks_of([HEALTHY, *[slower(0.25)] * 4, waits], [HEALTHY] * 6))
    assert len(find_slow_ranks(run, setup_of(2)).findings) == 1  # one window tells no cause


def test_a_window_has_thirty_steps() -> None:
    def windows(steps_per_s: float, count: int) -> list[int]:
        rates = changed(HEALTHY, steps_per_s=steps_per_s)
        return [round(w.seconds) for row in training_rows(ranks_of([rates] * (count + 1)), {}) for w in row]

    assert windows(3.0, 4) == [10] * 4
    assert windows(2.9, 4) == [20] * 2
    assert windows(0.5, 12) == [60] * 2
    assert windows(0.5, 11) == [60]


def test_slow_steps_need_longer_until_the_verdict() -> None:
    fine, slow = changed(HEALTHY, steps_per_s=0.5), changed(slower(0.2), steps_per_s=0.5)
    assert not find_slow_ranks(run_of(ranks_of([fine] * 18, [fine, *[slow] * 17])), setup_of(2)).findings
    assert find_slow_ranks(run_of(ranks_of([fine] * 19, [fine, *[slow] * 18])), setup_of(2)).findings


def test_the_window_in_which_steps_begin_is_not_judged() -> None:
    begin = slower(0.2)
    run = run_of(ranks_of([changed(HEALTHY, steps_per_s=0.0), begin, begin, begin, HEALTHY], [HEALTHY] * 5))
    assert find_slow_ranks(run, setup_of(2)).findings == ()


def test_evaluation_is_not_judged_and_rare_steps_are() -> None:
    pause = changed(HEALTHY, steps_per_s=0.0, cpu=0.99)
    idle = changed(HEALTHY, steps_per_s=0.0, cpu=0.0)
    run = run_of(ranks_of([HEALTHY] * 2 + [pause] * 5 + [HEALTHY] * 4, [HEALTHY] * 2 + [idle] * 5 + [HEALTHY] * 4))
    assert find_slow_ranks(run, setup_of(2)).findings == ()
    rare = [changed(HEALTHY, steps_per_s=steps) for steps in (0.1, 0.0) * 100]
    assert [w.seconds for row in training_rows(ranks_of(rare), {}) for w in row] == pytest.approx(
        [600, 600, 600], abs=20
    )


def test_restart_ends_a_row() -> None:
    slow = [HEALTHY, slower(0.2), slower(0.2), None, slower(0.2), slower(0.2), slower(0.2)]
    fine = [None if rates is None else HEALTHY for rates in slow]
    run = run_of(ranks_of(slow, fine))
    assert [len(row) for row in training_rows(run.ranks, {})] == [2, 2]
    assert find_slow_ranks(run, setup_of(2)).findings == ()


def test_files_that_begin_at_different_times() -> None:
    late = RankWindows(BEGIN + 31.0, 10.0, tuple(steady(slower(0.2), 6)))
    run = RunWindows({0: RankWindows(BEGIN, 10.0, tuple([HEALTHY] * 9)), 1: late}, {})
    assert only(find_slow_ranks(run, setup_of(2))).start == BEGIN + 41.0


def test_newest_windows_of_one_rank_have_not_arrived() -> None:
    fine, slow = [HEALTHY] * 6, steady(slower(0.2), 6)
    for late in range(4):
        run = run_of(ranks_of(fine[: 6 - late], slow))
        assert find_slow_ranks(run, setup_of(2)).unjudged == ("too-short" if late == 3 else "")
    found = only(find_slow_ranks(run_of(ranks_of(fine[:5], slow)), setup_of(2)))
    assert (found.is_current, found.windows) == (True, 4)
    longer = run_of(ranks_of([HEALTHY] * 20, [HEALTHY] * 20, [HEALTHY] * 20, steady(slower(0.2), 6)))
    assert only(find_slow_ranks(longer, setup_of(4))).windows == 5  # that rank has ended long before


def test_windows_of_different_length() -> None:
    joined = RankWindows(BEGIN, 20.0, tuple(steady(slower(0.2), 5)))
    run = RunWindows({0: RankWindows(BEGIN, 10.0, tuple([HEALTHY] * 10)), 1: joined}, {})
    assert only(find_slow_ranks(run, setup_of(2))).windows == 4


def test_cost_is_beside_the_slowest_of_the_others() -> None:
    found = only(verdict_of(HEALTHY, slower(0.04), slower(0.1), HEALTHY))
    assert [found.percent, found.cost_percent] == pytest.approx([10.0, 6.0])
    both = verdict_of(HEALTHY, HEALTHY, HEALTHY, slower(0.1), slower(0.2)).findings
    assert [(found.rank, round(found.cost_percent)) for found in both] == [(4, 20), (3, 10)]


def test_median_of_the_others() -> None:
    values = dict(enumerate((5.0, 1.0, 3.0, 3.0, 9.0, 2.0)))
    for count in range(2, 7):
        part = {rank: values[rank] for rank in range(count)}
        assert medians_of_others(part) == {
            rank: median(other for peer, other in part.items() if peer != rank) for rank in part
        }
    assert medians_of_others({0: 1.0}) == {}


@pytest.mark.parametrize(
    ("rates", "own"),
    [
        (RankRates(collective_wait=0.25, queue=0.5, data_wait=0.1), 0.75),
        (RankRates(cpu=0.9, queue=0.05, data_wait=0.1), 0.15),
        (RankRates(cpu=0.9, data_wait=0.1), 0.1),
        (RankRates(queue=0.7, data_wait=0.7), 1.0),
        (RankRates(cpu=0.9), None),
    ],
)
def test_own_time_is_what_is_no_waiting_or_that_part_of_it_which_is_known(rates: RankRates, own: float | None) -> None:
    assert rates.own_time == pytest.approx(own)


@case_table
def test_how_ranks_wait(backend: str, allreduce: str, hosts: int, waiting: str) -> None:
    assert waiting_of(backend, allreduce, hosts) == waiting


def test_work_of_ranks_that_spin_is_not_seen() -> None:
    assert verdict_of(HEALTHY, slower(0.3), waiting="spins").findings == ()
    found = only(verdict_of(HEALTHY, changed(HEALTHY, queue=0.3), waiting="spins"))
    assert (found.rank, found.cause.kind) == (1, "other-programs")


def test_why_there_is_no_verdict() -> None:
    assert find_slow_ranks(RunWindows({}, {}), setup_of(2)).unjudged == "no-windows"
    assert find_slow_ranks(run_of(ranks_of([HEALTHY], [HEALTHY])), setup_of(2)).unjudged == "too-short"
    assert verdict_of(HEALTHY, slower(0.3), windows=3).unjudged == "too-short"
    assert verdict_of(HEALTHY, slower(0.3), windows=4).unjudged == ""
    assert verdict_of(HEALTHY).unjudged == "one-rank"
    assert verdict_of(HEALTHY, slower(0.3), waiting="independent").unjudged == "independent"
    never = [changed(HEALTHY, steps_per_s=0.0)] * 5
    assert find_slow_ranks(run_of(ranks_of([HEALTHY] * 5, never)), setup_of(2)).unjudged == "not-together"
    unknown = changed(HEALTHY, cpu=None, queue=None, data_wait=None)
    assert verdict_of(unknown, unknown).unjudged == "no-own-time"


def test_ranks_that_do_not_step_together_are_not_judged() -> None:
    assert verdict_of(HEALTHY, changed(slower(0.3), steps_per_s=3.9)).unjudged == ""
    assert verdict_of(HEALTHY, HEALTHY, changed(slower(0.3), steps_per_s=3.9)).unjudged == "not-together"
    assert verdict_of(HEALTHY, HEALTHY, changed(slower(0.3), steps_per_s=4.1)).unjudged == ""


def test_whole_runs_are_judged_quickly() -> None:
    """A run of 64 ranks and six hours: 138,240 windows."""
    ranks = {rank: RankWindows(BEGIN, 10.0, (HEALTHY,) * 2160) for rank in range(64)}
    verdict = find_slow_ranks(RunWindows(ranks, {}), setup_of(64))
    assert (verdict.windows, verdict.findings) == (2159, ())


HALF = changed(HEALTHY, cpu=0.49, queue=0.0)
"""Works for half of each step, of five a second; the rest is transfer."""
SLOW = CALM._replace(sent_per_s=6e7)
"""120 MB/s while it transfers: less than 1 Gbit/s."""


def links(
    rank: dict[str, Any], host: dict[str, float], *, hosts: int = 2, waiting: str = "sleeps", windows: int = 5
) -> list[LinkFinding]:
    named = {f"node{number}": SLOW for number in range(1, hosts)} | {f"node{hosts}": SLOW._replace(**host)}
    return list(verdict_of(*[changed(HALF, **rank)] * hosts, hosts=named, waiting=waiting, windows=windows).links)


def test_slow_transfer_of_many_bytes() -> None:
    (link,) = links({}, {})
    assert (link.hosts, link.windows, link.is_current) == (("node1", "node2"), 4, True)
    assert (round(link.transfer, 3), round(link.bytes_per_s)) == (0.5, 120_000_000)


@case_table
def test_both_sides_of_each_threshold(fits: dict[str, Any], beyond: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"rank": {}, "host": {}}
    assert len(links(**usual | fits)) == 1
    assert links(**usual | beyond) == []


def test_a_link_of_a_gigabit_is_not_slow() -> None:
    fast = CALM._replace(sent_per_s=6.3e7)
    assert verdict_of(HALF, HALF, hosts={"node1": fast, "node2": fast}).links == ()
