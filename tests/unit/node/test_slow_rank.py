"""A look at the host of a slow rank: what its processors were used for."""

from __future__ import annotations

import pytest

from ipexctl.node.common.processes import ProcessStat
from ipexctl.node.run.slow_rank import busy_seconds, cpu_shares, family

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
    return ProcessStat(pid, "R", parent, 1, seconds, start, 0, 3)


def test_shares_between_two_readings() -> None:
    before = [stat(10, 1, 5.0), stat(11, 1, 7.0, start=1)]
    after = [stat(10, 1, 5.5), stat(11, 1, 0.2, start=9), stat(12, 10, 0.1)]
    assert cpu_shares(before, after, 2.0) == {10: 0.25, 11: pytest.approx(0.1), 12: pytest.approx(0.05)}


def test_descendants_belong_to_the_rank() -> None:
    assert family([stat(12, 11, 0), stat(11, 10, 0), stat(20, 1, 0)], 10) == {10, 11, 12}
