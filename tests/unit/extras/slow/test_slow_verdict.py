"""The slow rank, from windows as the step meter records them: both sides of each threshold."""

from __future__ import annotations

from statistics import median

import pytest
from slow_helpers import BEGIN, CALM, HEALTHY, judged, only, ranks_of, run_of, setup_of, steady

from ipexctl.extras.slow.timeline import judged_rows
from ipexctl.extras.slow.verdict import judge
from ipexctl.node.common.medians import medians_of_others
from ipexctl.node.run.own_time import own_time, waiting_of
from ipexctl.node.run.rates import RankRates
from ipexctl.node.run.window_file import RankWindows
from ipexctl.run.windows import RunWindows


def slower(more: float) -> RankRates:
    return HEALTHY._replace(main_cpu=(HEALTHY.main_cpu or 0) + more)


def test_rank_is_slow_from_five_percent_of_a_step_on() -> None:
    found = only(judged(HEALTHY, HEALTHY, slower(0.051), HEALTHY))
    assert (found.rank, found.host, found.is_current, found.windows) == (2, "node3", True, 4)
    assert found.percent == pytest.approx(5.1)
    assert found.cost_percent == pytest.approx(5.1)
    assert found.cost_seconds == pytest.approx(0.051 * 40)
    assert judged(HEALTHY, HEALTHY, slower(0.049), HEALTHY).findings == ()


def test_two_ranks_are_enough() -> None:
    assert only(judged(slower(0.1), HEALTHY)).rank == 0
    assert only(judged(HEALTHY, slower(0.1))).rank == 1


def test_three_windows_in_a_row() -> None:
    slow, fine = slower(0.2), HEALTHY

    def findings(*windows: RankRates | None) -> int:
        run = run_of(ranks_of([fine, *windows], [fine] * (1 + len(windows))))
        return len(judge(run, setup_of(2)).findings)

    assert findings(slow, slow, slow) == 1
    assert findings(slow, slow, fine, slow, slow) == 0
    assert findings(slow, slow, None, slow, slow) == 0  # of that rank nothing is known in between


def test_one_window_that_is_not_slow_ends_nothing_and_two_do() -> None:
    def found(*windows: bool) -> list[tuple[int, bool]]:
        run = run_of(ranks_of([HEALTHY, *[slower(0.2 * slow) for slow in windows]], [HEALTHY] * (1 + len(windows))))
        return [(each.windows, each.is_current) for each in judge(run, setup_of(2)).findings]

    assert found(True, True, True, False, True) == [(4, True)]
    assert found(True, True, True, False, False, True) == [(3, False)]
    assert found(True, True, False, True, True) == []


@pytest.mark.parametrize(("after", "is_current"), [(0, True), (1, True), (2, False)])
def test_slow_rank_of_earlier_is_no_current_one(after: int, is_current: bool) -> None:
    run = run_of(ranks_of([HEALTHY, *[slower(0.2)] * 3, *[HEALTHY] * after], [HEALTHY] * (4 + after)))
    found = only(judge(run, setup_of(2)))
    assert (found.is_current, found.start, found.end) == (is_current, BEGIN + 10, BEGIN + 40)


def test_a_rank_that_is_slow_for_another_cause_in_the_end_is_judged_by_that() -> None:
    waits = HEALTHY._replace(main_cpu=0.69, data_wait=0.31)
    run = run_of(ranks_of([HEALTHY, *[slower(0.25)] * 4, *[waits] * 3], [HEALTHY] * 8))
    found = judge(run, setup_of(2)).findings
    assert [(each.cause.kind, each.windows, each.is_current) for each in found] == [
        ("data", 3, True),
        ("work-or-bandwidth", 4, False),
    ]
    run = run_of(ranks_of([HEALTHY, *[slower(0.25)] * 4, waits], [HEALTHY] * 6))
    assert len(judge(run, setup_of(2)).findings) == 1  # one window tells no cause


def test_half_of_that_is_enough_where_a_cgroup_stopped_the_rank() -> None:
    def ranks(more: float, throttled: float, other: float = 0.0) -> list[int | None]:
        hosts = {"node1": CALM._replace(throttled=other), "node2": CALM._replace(throttled=throttled)}
        return [found.rank for found in judged(HEALTHY, slower(more), hosts=hosts).findings]

    assert ranks(0.026, 0.5) == [1]
    assert ranks(0.024, 0.5) == []
    assert ranks(0.026, 0.49) == []
    assert ranks(0.026, 1.0, other=0.6) == []  # all hosts are limited


def test_queue_behind_its_own_transfer_is_no_own_time() -> None:
    def ranks(queue: float, transfer: float | None, cores: float = 0.9) -> list[int | None]:
        slow = HEALTHY._replace(main_queue=queue, transfer_cpu=transfer, cores=cores)
        return [found.rank for found in judged(HEALTHY._replace(main_queue=0.0, transfer_cpu=0.0), slow).findings]

    assert ranks(0.149, 0.2) == []
    assert ranks(0.151, 0.2) == [1]
    assert ranks(0.051, None) == [1]
    assert ranks(0.074, 0.2, cores=4.0) == []  # its threads run on four cores
    assert ranks(0.076, 0.2, cores=4.0) == [1]


def test_a_window_has_thirty_steps() -> None:
    def windows(steps_per_s: float, count: int) -> list[int]:
        rates = HEALTHY._replace(steps_per_s=steps_per_s)
        return [round(w.seconds) for row in judged_rows(ranks_of([rates] * (count + 1)), {}) for w in row]

    assert windows(3.0, 4) == [10] * 4
    assert windows(2.9, 4) == [20] * 2
    assert windows(0.5, 12) == [60] * 2
    assert windows(0.5, 11) == [60]


def test_slow_steps_need_longer_until_the_verdict() -> None:
    fine, slow = HEALTHY._replace(steps_per_s=0.5), slower(0.2)._replace(steps_per_s=0.5)
    assert not judge(run_of(ranks_of([fine] * 18, [fine, *[slow] * 17])), setup_of(2)).findings
    assert judge(run_of(ranks_of([fine] * 19, [fine, *[slow] * 18])), setup_of(2)).findings


def test_the_window_in_which_steps_begin_is_not_judged() -> None:
    begin = slower(0.2)
    run = run_of(ranks_of([HEALTHY._replace(steps_per_s=0.0), begin, begin, begin, HEALTHY], [HEALTHY] * 5))
    assert judge(run, setup_of(2)).findings == ()


def test_evaluation_is_not_judged_and_rare_steps_are() -> None:
    pause = HEALTHY._replace(steps_per_s=0.0, main_cpu=0.99)
    idle = HEALTHY._replace(steps_per_s=0.0, main_cpu=0.0)
    run = run_of(ranks_of([HEALTHY] * 2 + [pause] * 5 + [HEALTHY] * 4, [HEALTHY] * 2 + [idle] * 5 + [HEALTHY] * 4))
    assert judge(run, setup_of(2)).findings == ()
    rare = [HEALTHY._replace(steps_per_s=steps) for steps in (0.1, 0.0) * 100]
    assert [w.seconds for row in judged_rows(ranks_of(rare), {}) for w in row] == pytest.approx([600, 600, 600], abs=20)


def test_restart_ends_a_row() -> None:
    slow = [HEALTHY, slower(0.2), slower(0.2), None, slower(0.2), slower(0.2), slower(0.2)]
    fine = [None if rates is None else HEALTHY for rates in slow]
    run = run_of(ranks_of(slow, fine))
    assert [len(row) for row in judged_rows(run.ranks, {})] == [2, 2]
    assert judge(run, setup_of(2)).findings == ()


def test_files_that_begin_at_different_times() -> None:
    late = RankWindows(BEGIN + 31.0, 10.0, tuple(steady(slower(0.2), 6)))
    run = RunWindows({0: RankWindows(BEGIN, 10.0, tuple([HEALTHY] * 9)), 1: late}, {})
    assert only(judge(run, setup_of(2))).start == BEGIN + 41.0


def test_newest_windows_of_one_rank_have_not_arrived() -> None:
    fine, slow = [HEALTHY] * 6, steady(slower(0.2), 6)
    for late in range(4):
        run = run_of(ranks_of(fine[: 6 - late], slow))
        assert judge(run, setup_of(2)).unjudged == ("too-short" if late == 3 else "")
    found = only(judge(run_of(ranks_of(fine[:5], slow)), setup_of(2)))
    assert (found.is_current, found.windows) == (True, 4)
    longer = run_of(ranks_of([HEALTHY] * 20, [HEALTHY] * 20, [HEALTHY] * 20, steady(slower(0.2), 6)))
    assert only(judge(longer, setup_of(4))).windows == 5  # that rank has ended long before


def test_windows_of_different_length() -> None:
    joined = RankWindows(BEGIN, 20.0, tuple(steady(slower(0.2), 5)))
    run = RunWindows({0: RankWindows(BEGIN, 10.0, tuple([HEALTHY] * 10)), 1: joined}, {})
    assert only(judge(run, setup_of(2))).windows == 4


def test_cost_is_beside_the_slowest_of_the_others() -> None:
    found = only(judged(HEALTHY, slower(0.04), slower(0.1), HEALTHY))
    assert [found.percent, found.cost_percent] == pytest.approx([10.0, 6.0])
    both = judged(HEALTHY, HEALTHY, HEALTHY, slower(0.1), slower(0.2)).findings
    assert [(found.rank, round(found.cost_percent)) for found in both] == [(4, 20), (3, 10)]


def test_median_of_the_others() -> None:
    values = dict(enumerate((5.0, 1.0, 3.0, 3.0, 9.0, 2.0)))
    for count in range(2, 7):
        part = {rank: values[rank] for rank in range(count)}
        assert medians_of_others(part) == {
            rank: median(other for peer, other in part.items() if peer != rank) for rank in part
        }
    assert medians_of_others({0: 1.0}) == {}


def test_own_time_under_gloo() -> None:
    rates = RankRates(1.0, data_wait=0.2, main_cpu=0.4, main_queue=0.1, backward_cpu=0.1, backward_queue=0.05)
    assert own_time(rates, "sleeps")[:4] == pytest.approx((0.85, 0.5, 0.15, 0.2))
    loaded_on_cpu = rates._replace(main_cpu=0.8, backward_cpu=None, backward_queue=None)
    assert own_time(loaded_on_cpu, "sleeps").total == pytest.approx(1.0)
    assert own_time(rates._replace(io_wait=0.3), "sleeps").total == pytest.approx(0.95)
    assert own_time(rates._replace(main_cpu=None), "sleeps").total is None


def test_own_time_with_shared_memory_is_what_is_not_waiting() -> None:
    rates = RankRates(1.0, main_cpu=0.4, main_queue=0.0, reduce_wait=0.25)
    assert own_time(rates, "shared").total == 0.75
    assert own_time(rates._replace(reduce_wait=None), "shared").total == pytest.approx(0.4)


def test_shared_memory_that_the_ranks_refused_is_not_counted_on() -> None:
    fine, slow = HEALTHY._replace(main_cpu=0.5), HEALTHY._replace(main_cpu=0.9)
    assert only(judged(fine, slow, waiting="shared", per_host=2)).rank == 1
    measured = judged(fine._replace(reduce_wait=0.4), slow._replace(reduce_wait=0.005), waiting="shared", per_host=2)
    assert round(only(measured).percent, 1) == 39.5


def test_own_time_of_ranks_that_spin_is_queue_and_data() -> None:
    rates = RankRates(1.0, main_cpu=0.9, main_queue=0.05, data_wait=0.1)
    assert own_time(rates, "spins").total == pytest.approx(0.15)
    assert own_time(RankRates(1.0, main_cpu=0.9), "spins").total is None


@pytest.mark.parametrize(
    ("backend", "allreduce", "hosts", "waiting"),
    [
        ("gloo", "backend", 2, "sleeps"),
        ("gloo", "shared", 1, "shared"),
        ("gloo", "shared", 2, "sleeps"),
        ("ccl", "backend", 2, "spins"),
        ("mpi", "backend", 1, "spins"),
        ("", "", 1, "spins"),
        ("none", "backend", 2, "independent"),
    ],
)
def test_how_ranks_wait(backend: str, allreduce: str, hosts: int, waiting: str) -> None:
    assert waiting_of(backend, allreduce, hosts) == waiting


def test_work_of_ranks_that_spin_is_not_seen() -> None:
    assert judged(HEALTHY, slower(0.3), waiting="spins").findings == ()
    found = only(judged(HEALTHY, HEALTHY._replace(main_queue=0.3), waiting="spins"))
    assert (found.rank, found.cause.kind) == (1, "contention")


def test_why_there_is_no_verdict() -> None:
    assert judge(RunWindows({}, {}), setup_of(2)).unjudged == "no-windows"
    assert judge(RunWindows({}, {}, are_older=True), setup_of(2)).unjudged == "older-version"
    assert judge(run_of(ranks_of([HEALTHY], [HEALTHY])), setup_of(2)).unjudged == "too-short"
    assert judged(HEALTHY, slower(0.3), windows=3).unjudged == "too-short"
    assert judged(HEALTHY, slower(0.3), windows=4).unjudged == ""
    assert judged(HEALTHY).unjudged == "one-rank"
    assert judged(HEALTHY, slower(0.3), waiting="independent").unjudged == "independent"
    never = [HEALTHY._replace(steps_per_s=0.0)] * 5
    assert judge(run_of(ranks_of([HEALTHY] * 5, never)), setup_of(2)).unjudged == "not-together"
    unknown = HEALTHY._replace(main_cpu=None, main_queue=None)
    assert judged(unknown, unknown).unjudged == "no-own-time"


def test_ranks_that_do_not_step_together_are_not_judged() -> None:
    assert judged(HEALTHY, slower(0.3)._replace(steps_per_s=3.9)).unjudged == ""
    assert judged(HEALTHY, HEALTHY, slower(0.3)._replace(steps_per_s=3.9)).unjudged == "not-together"
    assert judged(HEALTHY, HEALTHY, slower(0.3)._replace(steps_per_s=4.1)).unjudged == ""


def test_all_ranks_wait_for_data() -> None:
    waits = HEALTHY._replace(data_wait=0.11)
    found = only(judged(waits, waits, waits))
    assert (found.rank, found.cause.kind, round(found.percent)) == (None, "all-wait-for-data", 11)
    assert judged(*[HEALTHY._replace(data_wait=0.09)] * 3).findings == ()
    assert only(judged(waits)).rank is None  # also of one rank alone


def test_a_host_with_more_pressure_on_its_processors_is_named() -> None:
    def crowded(pressure: float, *ranks: RankRates) -> list[str]:
        hosts = {"node1": CALM._replace(cpu_pressure=0.1), "node2": CALM._replace(cpu_pressure=pressure)}
        return [found.host for found in judged(*ranks, hosts=hosts).crowded]

    assert crowded(0.41, HEALTHY, HEALTHY) == ["node2"]
    assert crowded(0.39, HEALTHY, HEALTHY) == []
    assert crowded(0.9, HEALTHY, slower(0.2)) == []  # that rank is named already


def test_whole_runs_are_judged_quickly() -> None:
    """A run of 64 ranks and six hours: 138,240 windows."""
    ranks = {rank: RankWindows(BEGIN, 10.0, (HEALTHY,) * 2160) for rank in range(64)}
    verdict = judge(RunWindows(ranks, {}), setup_of(64))
    assert (verdict.windows, verdict.findings) == (2159, ())
    assert CALM.steal == 0.0
