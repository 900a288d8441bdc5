"""Notes of a host for each window: pressure, frequency, memory, network, disks.

The wrapper of its lowest rank makes them. In come the ranks' processors, the run's interface and a process of the rank,
for its cgroup; out come rates between two readings of /proc and /sys. The rules: it needs no rights; what a host does
not tell is None; no reading takes long, so that of many processors a few are looked at in turn.
"""

from __future__ import annotations

import os
import re
from typing import Iterator, NamedTuple, Sequence

from ipexctl.node.common.json_records import NATURAL, FieldDecoder
from ipexctl.node.run.network_watch import MOMENT
from ipexctl.node.run.rates import HostRates
from ipexctl.node.run.window_file import MAX_LABEL, WINDOW

MAX_PROCESSORS = 4
"""Whose frequency is read at once: some kernels sleep 10 ms for one that is idle."""
LOOKING = 2.0
"""Seconds of each window in which the interface is looked at often."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SECTOR = 512
_PARTS = re.compile(r"^(loop|ram|zram|dm-|md|fd|sr)")
"""Disks of which another disk has the bytes, or memory."""
FIELD_DECODERS: dict[str, FieldDecoder] = {**NATURAL}


class HostNotes(NamedTuple):
    """The message `host`."""

    number: int
    seconds: float
    rates: HostRates
    iface: str = ""

    @property
    def is_possible(self) -> bool:
        """Whether a rank wrapper may have sent it."""
        return 0 < self.seconds <= 2 * WINDOW


class Moments:
    """How fast an interface sends at its busiest: it is looked at often, but only for LOOKING seconds of a window."""

    def __init__(self, path: str, now: float) -> None:
        self._path = path
        self.at = now + WINDOW - LOOKING if path else float("inf")
        """Of the next look."""
        self._begun = self.at
        self._before: tuple[float, int] | None = None
        self._peak: float | None = None

    def look(self, now: float) -> None:
        try:
            with open(self._path, encoding="ascii") as file:
                sent = int(file.read())
        except (OSError, ValueError):
            self.at = float("inf")
            return
        if self._before is not None:
            then, before = self._before
            if MOMENT / 2 <= now - then <= 2 * MOMENT:  # a look that came late is of another moment
                self._peak = max(self._peak or 0.0, (sent - before) / (now - then))
        self._before, self.at = (now, sent), now + MOMENT
        if now - self._begun >= LOOKING:
            self._before = None
            self._begun = self.at = now + WINDOW - LOOKING

    def take(self) -> float | None:
        """The rate of the busiest moment since the call before; None if it was not looked at."""
        peak, self._peak = self._peak, None
        return peak


class HostProbe:
    """Reads one host."""

    def __init__(self, cores: Sequence[int], iface: str, now: float, root: str = "") -> None:
        self._root = root
        self._cores = list(cores)
        self._turn = 0
        self.iface = iface[:MAX_LABEL] if iface and os.path.exists(f"{root}/sys/class/net/{iface}") else ""
        self._groups: list[str] | None = None
        self._disks: dict[str, bool] = {}
        self._at = now
        self._before: dict[str, float] = {}
        self._moments = Moments(f"{root}/sys/class/net/{self.iface}/statistics/tx_bytes" if self.iface else "", now)

    @property
    def next_look(self) -> float:
        """When `look` is to be called again, to find the busiest moment of the interface."""
        return self._moments.at

    def look(self, now: float) -> None:
        self._moments.look(now)

    def take(self, pid: int, now: float) -> HostRates | None:
        """The rates since the call before; None the first time."""
        sums = dict(self._sums(pid))
        before, seconds = self._before, now - self._at
        self._before, self._at = sums, now
        if not before or seconds <= 0:
            return None
        change = {name: max(0.0, value - before[name]) for name, value in sums.items() if name in before}

        def rate(*names: str) -> float | None:
            found = [change[name] for name in names if name in change]
            return sum(found) / seconds if found else None

        def part(name: str, whole: str) -> float | None:
            return change[name] / change[whole] if change.get(whole) and name in change else None

        idle, steal = part("idle", "processors"), part("steal", "processors")
        speeds = list(self._frequencies())
        busiest = [change[name] / seconds for name in change if name.startswith("busy ")]
        return HostRates(
            busy=None if idle is None or steal is None else max(0.0, 1 - idle - steal),
            cpu_pressure=rate("pressure cpu"),
            memory_pressure=rate("pressure memory"),
            io_pressure=rate("pressure io"),
            steal=steal,
            throttled=part("throttled", "periods"),
            mhz=sum(speeds) / len(speeds) if speeds else None,
            hot_per_s=rate("hot"),
            memory_used=self._memory_used(),
            swap_per_s=rate("swap"),
            received_per_s=rate("received"),
            sent_per_s=rate("sent"),
            retransmits_per_s=rate("retransmits"),
            read_per_s=rate("disk read"),
            write_per_s=rate("disk write"),
            disk_busy=max(busiest, default=None),
            peak_sent_per_s=self._moments.take(),
        )

    def _read(self, path: str) -> str:
        try:
            with open(f"{self._root}{path}", encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def _sums(self, pid: int) -> Iterator[tuple[str, float]]:
        times = [float(field) for field in self._read("/proc/stat").partition("\n")[0].split()[1:9]]
        if len(times) == 8:
            yield "processors", sum(times)
            yield "idle", times[3] + times[4]
            yield "steal", times[7]
        for name in ("cpu", "memory", "io"):
            found = re.search(r"^some .*total=(\d+)", self._read(f"/proc/pressure/{name}"), re.MULTILINE)
            if found:
                yield f"pressure {name}", int(found[1]) / 1e6
        yield from self._throttled(pid)
        hot = [self._read(f"{self._processor(core)}/thermal_throttle/package_throttle_count") for core in self._ends()]
        counts = [int(text) for text in hot if text.strip().isdigit()]
        if counts:
            yield "hot", sum(counts)
        pages = re.findall(r"^pswp(?:in|out) (\d+)$", self._read("/proc/vmstat"), re.MULTILINE)
        if pages:
            yield "swap", sum(map(int, pages)) * _PAGE
        yield from self._network()
        yield from self._disk()

    def _processor(self, core: int) -> str:
        return f"/sys/devices/system/cpu/cpu{core}"

    def _ends(self) -> list[int]:
        """Of the ranks' processors the first and the last, which may be in two packages."""
        return sorted({self._cores[0], self._cores[-1]}) if self._cores else []

    def _frequencies(self) -> Iterator[float]:
        for _ in range(min(MAX_PROCESSORS, len(self._cores))):
            core = self._cores[self._turn % len(self._cores)]
            self._turn += 1
            text = self._read(f"{self._processor(core)}/cpufreq/scaling_cur_freq").strip()
            if text.isdigit():
                yield int(text) / 1000

    def _memory_used(self) -> float | None:
        found = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", self._read("/proc/meminfo"), re.MULTILINE))
        return (int(found["MemTotal"]) - int(found["MemAvailable"])) * 1024.0 if len(found) == 2 else None

    def _throttled(self, pid: int) -> Iterator[tuple[str, float]]:
        """Of the cgroup that was throttled most, among that of the process and those above it."""
        if self._groups is None:
            self._groups = list(self._cpu_groups(pid))
        found = []
        for group in self._groups:
            values = dict(re.findall(r"^(nr_periods|nr_throttled) (\d+)$", self._read(f"{group}/cpu.stat"), re.M))
            if len(values) == 2 and int(values["nr_periods"]):
                found.append((float(values["nr_throttled"]), float(values["nr_periods"])))
        if found:
            throttled, periods = max(found)
            yield "throttled", throttled
            yield "periods", periods

    def _cpu_groups(self, pid: int) -> Iterator[str]:
        for line in self._read(f"/proc/{pid}/cgroup").splitlines():
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = f"/sys/fs/cgroup/{controllers}" if controllers else "/sys/fs/cgroup"
            while True:
                yield os.path.normpath(f"{top}/{path}")
                if path in ("", "/"):
                    break
                path = os.path.dirname(path)

    def _network(self) -> Iterator[tuple[str, float]]:
        received = sent = 0.0
        lines = [line for line in self._read("/proc/net/dev").splitlines() if ":" in line]
        for line in lines:
            name, _, text = line.partition(":")
            numbers = text.split()
            if name.strip() == "lo" and self.iface != "lo":
                continue
            if len(numbers) >= 9 and (name.strip() == self.iface or not self.iface):
                received, sent = received + float(numbers[0]), sent + float(numbers[8])
        if lines:
            yield from (("received", received), ("sent", sent))
        tcp = [line.split() for line in self._read("/proc/net/snmp").splitlines() if line.startswith("Tcp:")]
        retransmits = dict(zip(*tcp)).get("RetransSegs") if len(tcp) == 2 else None
        if retransmits is not None:
            yield "retransmits", float(retransmits)

    def _disk(self) -> Iterator[tuple[str, float]]:
        read = written = 0.0
        is_known = False
        for line in self._read("/proc/diskstats").splitlines():
            fields = line.split()
            if len(fields) < 13 or not self._is_disk(fields[2]):
                continue
            is_known = True
            read, written = read + float(fields[5]) * _SECTOR, written + float(fields[9]) * _SECTOR
            yield f"busy {fields[2]}", float(fields[12]) / 1000
        if is_known:
            yield from (("disk read", read), ("disk write", written))

    def _is_disk(self, name: str) -> bool:
        """Not a partition."""
        if name not in self._disks:
            path = f"{self._root}/sys/block/{name.replace('/', '!')}"
            self._disks[name] = not _PARTS.match(name) and os.path.exists(path)
        return self._disks[name]
