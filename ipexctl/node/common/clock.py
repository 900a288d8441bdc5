"""Waits and file ages on a node. Waits use a clock that does not jump, ages the wall clock, as file times do."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable, NamedTuple


class Countdown:
    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until it is over; 0 from then on."""
        return max(0.0, self._until - time.monotonic())

    @property
    def is_over(self) -> bool:
        """True once the seconds have passed."""
        return time.monotonic() > self._until

    def extend(self, seconds: float) -> None:
        """Let it take some seconds longer."""
        self._until += seconds

    def shorten(self, seconds: float) -> None:
        """Let it end in `seconds` from now at the latest."""
        self._until = min(self._until, time.monotonic() + seconds)


class Stopwatch:
    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start, or the last `restart`."""
        return time.monotonic() - self._began


def stretched(seconds: float, load: float | None = None, cores: int | None = None) -> float:
    """Return a limit of seconds as it is on a machine of this load (default: this one): all takes as many times longer
    as the load is per core; at most 24 times."""
    with contextlib.suppress(OSError):
        load = os.getloadavg()[0] if load is None else load
    return seconds * min(24.0, max(1.0, (load or 0.0) / (cores or os.cpu_count() or 1)))


def starvation() -> float:
    """Return by what factor to lengthen limits that leave room for a load of four per core; 1 up to that load."""
    return max(1.0, stretched(0.25))


MOST_STARVATION = 6.0


def wait_until(is_true: Callable[[], object], seconds: float, pause: float) -> bool:
    """Check every `pause` seconds until `is_true`, for `seconds` but at least once; returns whether it became true."""
    countdown = Countdown(seconds)
    while not is_true():
        if countdown.is_over:
            return False
        time.sleep(pause)
    return True


def seconds_since(at: float) -> float:
    """Return the seconds since a time of the wall clock; negative if that is in the future, as a file server's time may
    be."""
    return time.time() - at


def age_of(path: str | bytes) -> float:
    """Return the seconds since a file was last written. Raises an OSError if it does not exist."""
    return seconds_since(os.stat(path).st_mtime)


class ClockReading(NamedTuple):
    boot: str
    uptime: float
    wall: float


def read_clocks(boot: str) -> ClockReading:
    """Return how long this machine is up, time of suspension included, and the wall time. `boot`: the kernel's boot
    id."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts the time of a suspended machine
    return ClockReading(boot, time.clock_gettime(clock), time.time())
