"""The verdict on the network, apart from the ranks: both sides of each threshold."""

from __future__ import annotations

from typing import Any

import pytest
from slow_helpers import CALM, HEALTHY, changed, judged

from ipexctl.extras.slow.verdict import LinkFinding

HALF = changed(HEALTHY, cpu=0.49, queue=0.0)
"""Works for half of each step, of five a second; the rest is transfer."""
SLOW = CALM._replace(sent_per_s=6e7)
"""120 MB/s while it transfers: less than 1 Gbit/s."""


def links(
    rank: dict[str, Any], host: dict[str, float], *, hosts: int = 2, waiting: str = "sleeps", windows: int = 5
) -> list[LinkFinding]:
    named = {f"node{number}": SLOW for number in range(1, hosts)} | {f"node{hosts}": SLOW._replace(**host)}
    return list(judged(*[changed(HALF, **rank)] * hosts, hosts=named, waiting=waiting, windows=windows).links)


def test_slow_transfer_of_many_bytes() -> None:
    (link,) = links({}, {})
    assert (link.hosts, link.windows, link.is_current) == (("node1", "node2"), 4, True)
    assert (round(link.transfer, 3), round(link.bytes_per_s)) == (0.5, 120_000_000)


@pytest.mark.parametrize(
    ("fits", "beyond"),
    [
        ({"windows": 4}, {"windows": 3}),
        ({"hosts": 2}, {"hosts": 1}),
        ({"waiting": "sleeps"}, {"waiting": "spins"}),
        (
            {"rank": {"cpu": 0.68}, "host": {"sent_per_s": 1e7}},
            {"rank": {"cpu": 0.70}, "host": {"sent_per_s": 1e7}},
        ),
        ({"rank": {"queue": 0.24, "cpu": 0.25}}, {"rank": {"queue": 0.25, "cpu": 0.25}}),
        ({"rank": {"faults_per_s": 9.9}}, {"rank": {"faults_per_s": 10.0}}),
        ({"host": {"peak_sent_per_s": 1.2e8}}, {"host": {"peak_sent_per_s": 1.25e8}}),
        ({"host": {"sent_per_s": 5.3e6}}, {"host": {"sent_per_s": 5.2e6}}),  # 1.04 MB in a step
    ],
)
def test_both_sides_of_each_threshold(fits: dict[str, Any], beyond: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"rank": {}, "host": {}}
    assert len(links(**usual | fits)) == 1
    assert links(**usual | beyond) == []


def test_a_link_of_a_gigabit_is_not_slow() -> None:
    fast = CALM._replace(sent_per_s=6.3e7)
    assert judged(HALF, HALF, hosts={"node1": fast, "node2": fast}).links == ()
