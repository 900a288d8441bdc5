"""The rank that is slow now, as the supervisor watches it while windows arrive, and what its host is asked."""

from __future__ import annotations

import pytest

from ipexctl.node.common.processes import ProcessStat
from ipexctl.node.common.records import RunStatus, SlowRank, read_status
from ipexctl.node.run.meter.rates import RankRates
from ipexctl.node.run.meter.slow_watch import MOST_OPEN, SlowWatch
from ipexctl.node.run.slow_rank import busy_seconds, cpu_shares, family

HOSTS = {0: "node1", 1: "node2", 2: "node3"}
FINE = RankRates(5.0, collective_wait=0.29)
SLOW = FINE._replace(collective_wait=0.239)


def watched(*windows: RankRates, watch: SlowWatch | None = None, first: int = 0) -> SlowWatch:
    """Rank 2 has these, the others have nothing that is slow."""
    watch = watch or SlowWatch(HOSTS, "sleeps")
    for number, rates in enumerate(windows, first):
        for rank in HOSTS:
            watch.add(rank, number, rates if rank == 2 else FINE._replace(steps_per_s=rates.steps_per_s), 10.0)
    return watch


def test_a_rank_is_slow_after_three_windows_behind_the_first() -> None:
    assert watched(SLOW, SLOW, SLOW).slow is None
    slow = watched(SLOW, SLOW, SLOW, SLOW).slow
    assert slow is not None
    assert (slow.rank, slow.host, round(slow.percent, 1)) == (2, "node3", 5.1)
    assert watched(*[FINE._replace(collective_wait=0.241)] * 8).slow is None


def test_it_is_slow_until_two_windows_in_a_row_are_not() -> None:
    assert watched(*[SLOW] * 4, FINE).slow is not None
    assert watched(*[SLOW] * 4, FINE, FINE).slow is None
    assert watched(SLOW, SLOW, SLOW, FINE, SLOW).slow is None
    assert watched(*[SLOW] * 4, FINE, SLOW, FINE).slow is not None


def test_a_judged_window_has_thirty_steps() -> None:
    rare = SLOW._replace(steps_per_s=1.0)
    assert watched(*[rare] * 9).slow is None
    assert watched(*[rare] * 10).slow is not None


def test_a_gap_and_a_restart_begin_anew() -> None:
    watch = watched(*[SLOW] * 4)
    watched(SLOW, SLOW, watch=watch, first=6)
    assert watch.slow is None
    watch = watched(*[SLOW] * 4)
    watch.begin_attempt()
    assert watch.slow is None
    assert watched(*[SLOW] * 4, watch=watch).slow is not None


def test_a_rank_that_is_cut_off_lets_nothing_be_judged_and_nothing_pile_up() -> None:
    watch = SlowWatch(HOSTS, "sleeps")
    for number in range(100):
        watch.add(0, number, FINE, 10.0)
        watch.add(1, number, SLOW, 10.0)
    assert watch.slow is None
    assert len(watch._open) <= MOST_OPEN


def test_ranks_that_wait_for_nobody_and_one_rank_are_not_watched() -> None:
    assert watched(*[SLOW] * 8, watch=SlowWatch(HOSTS, "independent")).slow is None
    alone = SlowWatch({0: "node1"}, "sleeps")
    for number in range(8):
        alone.add(0, number, SLOW, 10.0)
    assert alone.slow is None


def test_the_status_has_it() -> None:
    status = RunStatus("run1", "running", world_size=3, slow=SlowRank(2, "node3", 5.1))
    assert read_status(status.to_json()).slow == SlowRank(2, "node3", 5.1)
    assert read_status(RunStatus("run1", "running", world_size=3).to_json()).slow is None


STAT = """\
cpu  4705 356 584 3699 23 23 10 0 0 0
cpu0 1000 100 200 5000 300 10 20 70 0 0
cpu1 3000 0 100 100 0 0 0 0 0 0
cpu10 9000 0 0 0 0 0 0 0 0 0
"""


def test_busy_time_of_some_processors() -> None:
    """Without idle, iowait and what the hypervisor took."""
    assert busy_seconds(STAT, [0]) == pytest.approx(13.3)
    assert busy_seconds(STAT, [0, 1]) == pytest.approx(44.3)
    assert busy_seconds(STAT, [7]) is None


def stat(pid: int, parent: int, seconds: float, start: int = 1) -> ProcessStat:
    return ProcessStat(pid, "R", parent, 1, seconds, start, 0)


def test_shares_between_two_readings() -> None:
    before = [stat(10, 1, 5.0), stat(11, 1, 7.0, start=1)]
    after = [stat(10, 1, 5.5), stat(11, 1, 0.2, start=9), stat(12, 10, 0.1)]
    assert cpu_shares(before, after, 2.0) == {10: 0.25, 11: pytest.approx(0.1), 12: pytest.approx(0.05)}


def test_descendants_belong_to_the_rank() -> None:
    assert family([stat(12, 11, 0), stat(11, 10, 0), stat(20, 1, 0)], 10) == {10, 11, 12}
