"""Measures a host for each window: bytes sent over its network link, and CPU frequency. Needs no special rights."""

from __future__ import annotations

import os
from typing import Iterator, NamedTuple, Sequence

from ipexctl.node.common.json_records import NATURAL, FieldDecoder
from ipexctl.node.common.processes import read_text
from ipexctl.node.run.meter.network_watch import MOMENT
from ipexctl.node.run.meter.rates import HostRates
from ipexctl.node.run.meter.window_file import WINDOW

MAX_PROCESSORS = 4
"""Processors read per window, in turn, because some kernels sleep 10 ms to read an idle one's frequency."""
LOOKING = 2.0
"""Seconds of each window in which the interface is sampled often."""
FIELD_DECODERS: dict[str, FieldDecoder] = {**NATURAL}


class HostNotes(NamedTuple):
    number: int
    seconds: float
    rates: HostRates
    iface: str = ""

    @property
    def is_possible(self) -> bool:
        """False for a length that no window has. The supervisor ignores such a message."""
        return 0 < self.seconds <= 2 * WINDOW


class Moments:
    def __init__(self, path: str, now: float) -> None:
        self._path = path
        self.at = now + WINDOW - LOOKING if path else float("inf")
        self._begun = self.at
        self._before: tuple[float, int] | None = None
        self._peak: float | None = None

    def read(self, now: float) -> None:
        """Read the counter of sent bytes, and set `at`, when to read it next. If the counter can't be read, that is
        never."""
        try:
            with open(self._path, encoding="ascii") as file:
                sent = int(file.read())
        except (OSError, ValueError):
            self.at = float("inf")
            return
        if self._before is not None:
            then, before = self._before
            if MOMENT / 2 <= now - then <= 2 * MOMENT:  # ignores a late sample
                self._peak = max(self._peak or 0.0, (sent - before) / (now - then))
        self._before, self.at = (now, sent), now + MOMENT
        if now - self._begun >= LOOKING:
            self._before = None
            self._begun = self.at = now + WINDOW - LOOKING

    def take(self) -> float | None:
        """Return bytes/s in the busiest moment since the last call; None without samples."""
        peak, self._peak = self._peak, None
        return peak


class HostProbe:
    def __init__(self, cores: Sequence[int], iface: str, now: float, root: str = "") -> None:
        self._root = root
        self._cores = list(cores)
        self._turn = 0
        self.iface = iface if iface and os.path.exists(f"{root}/sys/class/net/{iface}") else ""
        self._at = now
        self._is_first = True
        self._before: float | None = None
        self._moments = Moments(f"{root}/sys/class/net/{self.iface}/statistics/tx_bytes" if self.iface else "", now)

    @property
    def next_read(self) -> float:
        """When `read` is due, by the monotonic clock; infinite if there is no interface to read."""
        return self._moments.at

    def read(self, now: float) -> None:
        """Read the interface between two windows, to find its busiest moment."""
        self._moments.read(now)

    def take(self, now: float) -> HostRates | None:
        """Return the rates since the last call; None at the first call."""
        before, sent, seconds = self._before, self._sent(), now - self._at
        is_first, self._is_first = self._is_first, False
        self._before, self._at = sent, now
        if is_first or seconds <= 0:
            return None
        speeds = list(self._frequencies())
        return HostRates(
            sent_per_s=None if before is None or sent is None else max(0.0, sent - before) / seconds,
            peak_sent_per_s=self._moments.take(),
            mhz=sum(speeds) / len(speeds) if speeds else None,
        )

    def _frequencies(self) -> Iterator[float]:
        for _ in range(min(MAX_PROCESSORS, len(self._cores))):
            core = self._cores[self._turn % len(self._cores)]
            self._turn += 1
            text = read_text(f"{self._root}/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq").strip()
            if text.isdigit():
                yield int(text) / 1000

    def _sent(self) -> float | None:
        """Return the bytes sent since boot over the run's interface; over all but the loopback if the run names none.
        None if the kernel does not tell."""
        sent = []
        for line in read_text(f"{self._root}/proc/net/dev").splitlines():
            name, _, text = line.partition(":")
            numbers = text.split()
            is_own = name.strip() == self.iface if self.iface else name.strip() != "lo"
            if is_own and len(numbers) >= 9:
                sent.append(float(numbers[8]))
        return sum(sent) if sent else None
