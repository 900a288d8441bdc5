"""Notes of a host: what is read of /proc and /sys, of which interface and disks, and what a host does not tell."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ipexctl.node.run.host_notes import MAX_PROCESSORS, HostNotes, HostProbe
from ipexctl.node.run.rates import HostRates

approx: Any = pytest.approx
PID = 7
PAGE = os.sysconf("SC_PAGE_SIZE")
NET = """\
Inter-| Receive
 face |bytes
    lo: {lo} 0 0 0 0 0 0 0 {lo} 0
  eth0: {eth0} 0 0 0 0 0 0 0 {sent} 0
 eth1: 5 0 0 0 0 0 0 0 {eth1} 0
"""
DISKS = """\
   8       0 sda 0 0 {read} 0 0 0 {written} 0 0 {busy} 0
   8       1 sda1 0 0 {read} 0 0 0 {written} 0 0 {busy} 0
 253       0 dm-0 0 0 {read} 0 0 0 {written} 0 0 {busy} 0
   7       0 loop0 0 0 {read} 0 0 0 {written} 0 0 {busy} 0
"""
NOTHING = HostRates()


class Host:
    """A directory as the root of a host."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def at(self, n: int) -> None:
        """The state after `n` windows of ten seconds."""
        self.write("proc/stat", f"cpu  {600 * n} 0 0 {200 * n} {100 * n} 0 0 {100 * n} 0 0\ncpu0 1 1\n")
        self.write("proc/loadavg", "3.50 2.00 1.00 1/2 3\n")
        for name, micros in (("cpu", 1_000_000), ("memory", 2_000_000), ("io", 500_000)):
            self.write(f"proc/pressure/{name}", f"some avg10=0 total={n * micros}\nfull avg10=0 total=9\n")
        self.write("proc/meminfo", "MemTotal:  1000 kB\nMemFree: 10 kB\nMemAvailable:  300 kB\n")
        self.write("proc/vmstat", f"pswpin {10 * n}\npswpout {20 * n}\npgpgin 5\n")
        self.write("proc/net/dev", NET.format(lo=9**n, eth0=1000 * n, sent=500 * n, eth1=100 * n))
        self.write("proc/net/snmp", f"Ip: A\nIp: 1\nTcp: RtoAlgorithm RetransSegs InErrs\nTcp: 1 {30 * n} 9\n")
        self.write("proc/diskstats", DISKS.format(read=20 * n, written=40 * n, busy=2500 * n))
        for name in ("sda", "dm-0", "loop0"):
            (self.root / "sys/block" / name).mkdir(parents=True, exist_ok=True)
        (self.root / "sys/class/net/eth0").mkdir(parents=True, exist_ok=True)
        for core, mhz in ((0, 3000), (1, 2000)):
            self.write(f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", f"{mhz}000\n")
            self.write(f"sys/devices/system/cpu/cpu{core}/thermal_throttle/package_throttle_count", f"{5 * n}\n")
        self.write(f"proc/{PID}/cgroup", "0::/job/step\n")
        self.write("sys/fs/cgroup/job/step/cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
        self.write("sys/fs/cgroup/job/cpu.stat", f"nr_periods {100 * n}\nnr_throttled {20 * n}\nthrottled_usec 5\n")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(tmp_path)
    found.at(1)
    return found


def rates_of(host: Host, iface: str = "eth0") -> HostRates:
    probe = HostProbe((0, 1), iface, 1000.0, str(host.root))
    assert probe.take(PID, 1000.0) is None
    host.at(2)
    rates = probe.take(PID, 1010.0)
    assert rates is not None
    return rates


def test_rates_between_two_readings(host: Host) -> None:
    assert rates_of(host) == HostRates(
        busy=approx(0.6),
        cpu_pressure=approx(0.1),
        memory_pressure=approx(0.2),
        io_pressure=approx(0.05),
        steal=approx(0.1),
        throttled=approx(0.2),
        mhz=2500.0,
        hot_per_s=approx(1.0),
        memory_used=700 * 1024.0,
        swap_per_s=3.0 * PAGE,
        received_per_s=100.0,
        sent_per_s=50.0,
        retransmits_per_s=3.0,
        read_per_s=1024.0,
        write_per_s=2048.0,
        disk_busy=approx(0.25),
    )


@pytest.mark.parametrize("iface", ["", "gone0"])
def test_without_an_interface_of_the_run_all_but_the_loopback_count(host: Host, iface: str) -> None:
    rates = rates_of(host, iface)
    assert (rates.received_per_s, rates.sent_per_s) == (100.0, 60.0)


def test_cgroups_of_version_1_are_read(host: Host) -> None:
    host.write(f"proc/{PID}/cgroup", "9:name=systemd:/\n2:cpu,cpuacct:/job\n")
    host.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.stat", "nr_periods 10\nnr_throttled 5\nthrottled_time 5\n")
    probe = HostProbe((0,), "", 1000.0, str(host.root))
    probe.take(PID, 1000.0)
    host.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.stat", "nr_periods 20\nnr_throttled 10\nthrottled_time 5\n")
    rates = probe.take(PID, 1010.0)
    assert rates is not None
    assert rates.throttled == 0.5


def test_a_host_that_tells_nothing_has_no_rates(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/vmstat").write_text("pswpin 0\npswpout 0\n")
    probe = HostProbe((), "", 1000.0, str(tmp_path))
    probe.take(PID, 1000.0)
    assert probe.take(PID, 1010.0) == NOTHING._replace(swap_per_s=0.0)


def test_counters_that_go_back_are_no_negative_rates(host: Host) -> None:
    host.at(3)
    rates = rates_of(host)
    assert (rates.received_per_s, rates.read_per_s) == (0.0, 0.0)
    assert rates.busy is None


def test_of_many_processors_a_few_are_read_in_turn(host: Host) -> None:
    cores = range(2 * MAX_PROCESSORS)
    for core in cores:
        host.write(f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", f"{1000 + core}000\n")
    probe = HostProbe(cores, "", 1000.0, str(host.root))
    probe.take(PID, 1000.0)
    means = []
    for at in (1010.0, 1020.0):
        rates = probe.take(PID, at)
        assert rates is not None
        means.append(rates.mhz)
    assert means == [1001.5, 1001.5 + MAX_PROCESSORS]


def test_this_host() -> None:
    probe = HostProbe(sorted(os.sched_getaffinity(0)), "", time.monotonic())
    probe.take(os.getpid(), time.monotonic())
    time.sleep(0.1)
    rates = probe.take(os.getpid(), time.monotonic())
    assert rates is not None
    assert rates.memory_used is not None
    assert rates.busy is not None
    assert 0 <= rates.busy <= 1


@pytest.mark.parametrize(("seconds", "is_possible"), [(0.0, False), (0.001, True), (20.0, True), (20.1, False)])
def test_a_window_has_a_possible_length(seconds: float, is_possible: bool) -> None:
    assert HostNotes(0, seconds, NOTHING).is_possible == is_possible


def look_each_moment(probe: HostProbe, host: Host, begin: float, seconds: float, rates: dict[int, int]) -> list[float]:
    """Look whenever the probe asks for it; a moment's bytes are those of `rates` by its number. Returns the times."""
    now, sent, times = begin, 0, list[float]()
    while now < begin + seconds:
        if now >= probe.next_look:
            sent += rates.get(len(times), 1)
            host.write("sys/class/net/eth0/statistics/tx_bytes", f"{sent}\n")
            probe.look(now)
            times.append(now)
        now = round(now + 0.01, 2)
    return times


def test_the_busiest_moment_of_the_interface_is_found_in_a_part_of_each_window(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.at(1)
    probe = HostProbe([0], "eth0", 0.0, str(tmp_path))
    probe.take(PID, 0.0)
    times = look_each_moment(probe, host, 0.0, 10.2, {7: 5000})
    assert min(times) >= 8.0
    assert 35 <= len(times) <= 45
    host.at(2)
    found = probe.take(PID, 10.2)
    assert found is not None
    assert found.peak_sent_per_s == approx(5000 / 0.05, rel=0.2)
    host.at(3)
    assert min(look_each_moment(probe, host, 10.3, 9.0, {})) >= 18.0
    found = probe.take(PID, 20.0)
    assert found is not None
    assert found.peak_sent_per_s == approx(1 / 0.05, rel=0.2)


def test_a_look_that_comes_late_tells_nothing_of_a_moment(tmp_path: Path) -> None:
    """A mean over a longer time would be taken for the rate of the link."""
    host = Host(tmp_path)
    host.at(1)
    probe = HostProbe([0], "eth0", 0.0, str(tmp_path))
    probe.take(PID, 0.0)
    for sent, now in ((0, 8.0), (1000, 8.05), (99_000, 8.65), (99_001, 8.651)):
        host.write("sys/class/net/eth0/statistics/tx_bytes", f"{sent}\n")
        probe.look(now)
    host.at(2)
    found = probe.take(PID, 10.0)
    assert found is not None
    assert found.peak_sent_per_s == approx(1000 / 0.05)


def test_no_interface_is_looked_at_where_the_plan_names_none(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.at(1)
    assert HostProbe([0], "", 0.0, str(tmp_path)).next_look == float("inf")
    probe = HostProbe([0], "eth0", 0.0, str(tmp_path))
    probe.look(8.0)
    assert probe.next_look == float("inf")
