"""Notes of a host: what is read of /proc and /sys, of which interface, and what a host does not tell."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ipexctl.node.run.meter.host_notes import MAX_PROCESSORS, HostNotes, HostProbe
from ipexctl.node.run.meter.rates import HostRates

NET = """\
Inter-| Receive
 face |bytes
    lo: 9 0 0 0 0 0 0 0 {lo} 0
  eth0: 9 0 0 0 0 0 0 0 {sent} 0
 eth1: 5 0 0 0 0 0 0 0 {eth1} 0
"""


class Host:
    """A directory as the root of a host."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def at(self, n: int) -> None:
        """The state after `n` windows of ten seconds."""
        self.write("proc/net/dev", NET.format(lo=9**n, sent=500 * n, eth1=100 * n))
        (self.root / "sys/class/net/eth0").mkdir(parents=True, exist_ok=True)
        for core, mhz in ((0, 3000), (1, 2000)):
            self.write(f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", f"{mhz}000\n")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(tmp_path)
    found.at(1)
    return found


@pytest.mark.parametrize(
    ("iface", "after", "sent"),
    [
        ("eth0", 2, 50.0),
        ("eth0", 0, 0.0),  # a counter that goes back is no negative rate
        ("", 2, 60.0),  # of all but the loopback
        ("gone0", 2, 60.0),
    ],
)
def test_rates_between_two_readings(host: Host, iface: str, after: int, sent: float) -> None:
    probe = HostProbe((0, 1), iface, 1000.0, str(host.root))
    assert probe.take(1000.0) is None
    host.at(after)
    assert probe.take(1010.0) == HostRates(sent_per_s=sent, mhz=2500.0)


def test_a_host_that_tells_nothing_has_no_rates(tmp_path: Path) -> None:
    probe = HostProbe((0,), "", 1000.0, str(tmp_path))
    probe.take(1000.0)
    assert probe.take(1010.0) == HostRates()


def test_of_many_processors_a_few_are_read_in_turn(host: Host) -> None:
    cores = range(2 * MAX_PROCESSORS)
    for core in cores:
        host.write(f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", f"{1000 + core}000\n")
    probe = HostProbe(cores, "", 1000.0, str(host.root))
    probe.take(1000.0)
    means = []
    for at in (1010.0, 1020.0):
        rates = probe.take(at)
        assert rates is not None
        means.append(rates.mhz)
    assert means == [1001.5, 1001.5 + MAX_PROCESSORS]


def test_this_host() -> None:
    probe = HostProbe(sorted(os.sched_getaffinity(0)), "lo", time.monotonic())
    probe.take(time.monotonic())
    time.sleep(0.1)
    rates = probe.take(time.monotonic())
    assert rates is not None
    assert rates.sent_per_s is not None
    assert rates.sent_per_s >= 0


@pytest.mark.parametrize(("seconds", "is_possible"), [(0.0, False), (0.001, True), (20.0, True), (20.1, False)])
def test_a_window_has_a_possible_length(seconds: float, is_possible: bool) -> None:
    assert HostNotes(0, seconds, HostRates()).is_possible == is_possible


def look_each_moment(probe: HostProbe, host: Host, begin: float, seconds: float, rates: dict[int, int]) -> list[float]:
    """Look whenever the probe asks for it; a moment's bytes are those of `rates` by its number. Returns the times."""
    now, sent, times = begin, 0, list[float]()
    while now < begin + seconds:
        if now >= probe.next_read:
            sent += rates.get(len(times), 1)
            host.write("sys/class/net/eth0/statistics/tx_bytes", f"{sent}\n")
            probe.read(now)
            times.append(now)
        now = round(now + 0.01, 2)
    return times


def test_the_busiest_moment_of_the_interface_is_found_in_a_part_of_each_window(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.at(1)
    probe = HostProbe([0], "eth0", 0.0, str(tmp_path))
    probe.take(0.0)
    times = look_each_moment(probe, host, 0.0, 10.2, {7: 5000})
    assert min(times) >= 8.0
    assert 35 <= len(times) <= 45
    host.at(2)
    found = probe.take(10.2)
    assert found is not None
    assert found.peak_sent_per_s == pytest.approx(5000 / 0.05, rel=0.2)
    host.at(3)
    assert min(look_each_moment(probe, host, 10.3, 9.0, {})) >= 18.0
    found = probe.take(20.0)
    assert found is not None
    assert found.peak_sent_per_s == pytest.approx(1 / 0.05, rel=0.2)


def test_a_look_that_comes_late_tells_nothing_of_a_moment(tmp_path: Path) -> None:
    """A mean over a longer time would be taken for the rate of the link."""
    host = Host(tmp_path)
    host.at(1)
    probe = HostProbe([0], "eth0", 0.0, str(tmp_path))
    probe.take(0.0)
    for sent, now in ((0, 8.0), (1000, 8.05), (99_000, 8.65), (99_001, 8.651)):
        host.write("sys/class/net/eth0/statistics/tx_bytes", f"{sent}\n")
        probe.read(now)
    host.at(2)
    found = probe.take(10.0)
    assert found is not None
    assert found.peak_sent_per_s == pytest.approx(1000 / 0.05)


def test_no_interface_is_looked_at_where_the_plan_names_none(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.at(1)
    assert HostProbe([0], "", 0.0, str(tmp_path)).next_read == float("inf")
    probe = HostProbe([0], "eth0", 0.0, str(tmp_path))
    probe.read(8.0)
    assert probe.next_read == float("inf")
