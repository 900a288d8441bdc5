"""The verdict on the network, apart from the ranks: both sides of each threshold."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from slow_helpers import CALM, HEALTHY, judged, ranks_of, run_of, setup_of

from ipexctl.extras.slow.network import LinkFinding
from ipexctl.extras.slow.verdict import judge
from ipexctl.node.run.rates import HostRates, RankRates

SEGMENTS = 10_000.0
SENDS = CALM._replace(sent_per_s=SEGMENTS * 1448)


def links(*hosts: HostRates, rank: RankRates = HEALTHY, waiting: str = "sleeps", windows: int = 5) -> list[LinkFinding]:
    named: Mapping[str, HostRates] = {f"node{number}": rates for number, rates in enumerate(hosts, 1)}
    return list(judged(*[rank] * len(hosts), hosts=named, waiting=waiting, windows=windows).links)


def test_host_loses_segments_from_one_in_two_hundred_on() -> None:
    found = links(SENDS, SENDS._replace(retransmits_per_s=50.0))
    assert [(link.kind, link.hosts, link.windows, link.is_current) for link in found] == [
        ("lost-segments", ("node2",), 4, True)
    ]
    assert links(SENDS, SENDS._replace(retransmits_per_s=49.0)) == []


def test_few_segments_are_no_loss() -> None:
    quiet = CALM._replace(sent_per_s=100 * 1448.0)
    assert links(quiet, quiet._replace(retransmits_per_s=0.9)) == []
    assert len(links(quiet, quiet._replace(retransmits_per_s=1.0))) == 1


def test_loss_needs_three_windows() -> None:
    lossy = SENDS._replace(retransmits_per_s=500.0)
    assert links(SENDS, lossy, windows=3) == []
    assert len(links(SENDS, lossy, windows=4)) == 1


def test_loss_is_seen_also_of_ranks_that_spin() -> None:
    assert len(links(SENDS, SENDS._replace(retransmits_per_s=500.0), waiting="spins")) == 1


def test_one_host_has_no_network() -> None:
    assert links(SENDS._replace(retransmits_per_s=500.0)) == []


def test_slow_transfer_of_many_bytes() -> None:
    """Ranks work for half of each step, of five a second, and the rest is transfer."""
    half = HEALTHY._replace(main_cpu=0.49, main_queue=0.0, data_wait=0.01)
    slow = CALM._replace(sent_per_s=6e7)  # 120 MB/s while it transfers: less than 1 Gbit/s
    found = links(slow, slow, rank=half)
    assert [(link.kind, link.hosts) for link in found] == [("slow-transfer", ("node1", "node2"))]
    assert round(found[0].transfer or 0, 3) == 0.5
    assert round(found[0].bytes_per_s or 0) == 120_000_000
    assert links(*[slow._replace(sent_per_s=6.3e7)] * 2, rank=half) == []
    assert links(slow, slow, rank=half, waiting="spins") == []


@pytest.mark.parametrize(
    ("figure", "count"),
    [
        ({"peak_sent_per_s": 1.94e9}, 0),
        ({"peak_sent_per_s": 1.2e8}, 1),
        ({"cpu_pressure": 0.5}, 0),
        ({"cpu_pressure": 0.49}, 1),
    ],
)
def test_a_link_that_did_more_is_not_slow_and_none_is_blamed_for_crowded_cores(
    figure: dict[str, float], count: int
) -> None:
    half = HEALTHY._replace(main_cpu=0.49, main_queue=0.0, data_wait=0.01)
    slow = CALM._replace(sent_per_s=6e7)
    assert len(links(slow, slow._replace(**figure), rank=half)) == count


def test_short_or_small_transfers_are_not_slow() -> None:
    slow = CALM._replace(sent_per_s=1e7)
    busy = HEALTHY._replace(main_cpu=0.70, main_queue=0.0, data_wait=0.01)
    assert links(slow, slow, rank=busy) == []
    assert len(links(slow, slow, rank=busy._replace(main_cpu=0.68))) == 1
    small = CALM._replace(sent_per_s=5.2e6)  # 1.04 MB in a step
    assert links(small, small, rank=busy._replace(main_cpu=0.68)) == []
    assert len(links(*[small._replace(sent_per_s=5.3e6)] * 2, rank=busy._replace(main_cpu=0.68))) == 1


def test_earlier_loss_hides_no_slow_transfer() -> None:
    half = HEALTHY._replace(main_cpu=0.49, main_queue=0.0, data_wait=0.01)
    slow = CALM._replace(sent_per_s=6e7)
    lossy = slow._replace(retransmits_per_s=5000.0)
    ranks = ranks_of([half] * 8, [half] * 8)
    found = judge(run_of(ranks, {0: [slow] * 8, 1: [slow, *[lossy] * 3, *[slow] * 4]}), setup_of(2)).links
    assert [(link.kind, link.windows, link.is_current) for link in found] == [
        ("lost-segments", 3, False),
        ("slow-transfer", 4, True),
    ]
