"""The rank that is slow now, as the supervisor watches it while windows arrive."""

from __future__ import annotations

from ipexctl.node.common.records import RunStatus, SlowRank, read_status
from ipexctl.node.run.rates import RankRates
from ipexctl.node.run.slow_watch import MOST_OPEN, SlowWatch

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
