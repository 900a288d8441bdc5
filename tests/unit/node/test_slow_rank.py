"""A look at the host of a slow rank: NUMA and processors from trees as recorded, processes as lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipexctl.node.common.processes import ProcessStat
from ipexctl.node.run.slow_rank import _top_mhz, busy_seconds, cpu_shares, family, far_memory, parse_cpus

STAT = """\
cpu  4705 356 584 3699 23 23 10 0 0 0
cpu0 1000 100 200 5000 300 10 20 70 0 0
cpu1 3000 0 100 100 0 0 0 0 0 0
cpu10 9000 0 0 0 0 0 0 0 0 0
"""
NUMA_MAPS = """\
7f0000000000 bind:0 anon=700 dirty=700 N0=700 kernelpagesize_kB=4
7f1000000000 bind:0 anon=3 dirty=3 N1=3 kernelpagesize_kB=2048
7f2000000000 default file=/usr/lib/libc.so.6 mapped=144 N1=144 kernelpagesize_kB=4
7f3000000000 default
"""


def numa_tree(root: Path, *cpus: str) -> str:
    for number, text in enumerate(cpus):
        node = root / f"sys/devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(text + "\n")
    (root / "proc/77").mkdir(parents=True)
    (root / "proc/77/numa_maps").write_text(NUMA_MAPS)
    return str(root)


def test_far_memory_of_two_sockets(tmp_path: Path) -> None:
    """Recorded on a machine with two nodes; the lab has none such."""
    root = numa_tree(tmp_path, "0-27,56-83", "28-55,84-111")
    near, far = 700 * 4, 3 * 2048 + 144 * 4
    assert far_memory(77, [0, 1], root) == pytest.approx(far / (near + far))
    assert far_memory(77, [28], root) == pytest.approx(near / (near + far))
    assert far_memory(77, [0, 28], root) == 0.0


def test_one_node_has_no_far_memory(tmp_path: Path) -> None:
    assert far_memory(77, [0], numa_tree(tmp_path, "0-55")) is None
    assert far_memory(77, [0], str(tmp_path / "elsewhere")) is None


def test_numa_maps_of_another_account(tmp_path: Path) -> None:
    root = numa_tree(tmp_path, "0", "1")
    (tmp_path / "proc/77/numa_maps").unlink()
    assert far_memory(77, [0], root) is None


def test_busy_time_of_some_processors() -> None:
    """Without idle, iowait and what the hypervisor took."""
    assert busy_seconds(STAT, [0]) == pytest.approx(13.3)
    assert busy_seconds(STAT, [0, 1]) == pytest.approx(44.3)
    assert busy_seconds(STAT, [7]) is None


def test_top_frequency(tmp_path: Path) -> None:
    place = tmp_path / "sys/devices/system/cpu/cpu3/cpufreq"
    place.mkdir(parents=True)
    (place / "cpuinfo_max_freq").write_text("3500000\n")
    assert _top_mhz([3], str(tmp_path)) == 3500.0
    assert _top_mhz([4], str(tmp_path)) is None


def stat(pid: int, parent: int, seconds: float, start: int = 1) -> ProcessStat:
    return ProcessStat(pid, "R", parent, 1, seconds, start, 0, 3)


def test_shares_between_two_readings() -> None:
    before = [stat(10, 1, 5.0), stat(11, 1, 7.0, start=1)]
    after = [stat(10, 1, 5.5), stat(11, 1, 0.2, start=9), stat(12, 10, 0.1)]
    assert cpu_shares(before, after, 2.0) == {10: 0.25, 11: pytest.approx(0.1), 12: pytest.approx(0.05)}


def test_descendants_belong_to_the_rank() -> None:
    assert family([stat(12, 11, 0), stat(11, 10, 0), stat(20, 1, 0)], 10) == {10, 11, 12}


def test_lists_of_processors() -> None:
    assert list(parse_cpus("0-3,8\n")) == [0, 1, 2, 3, 8]
    assert list(parse_cpus("\n")) == []
