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
        return max(0.0, self._until - time.monotonic())

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._until

    def extend(self, seconds: float) -> None:
        self._until += seconds

    def shorten(self, seconds: float) -> None:
        self._until = min(self._until, time.monotonic() + seconds)


class Stopwatch:
    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


def stretched(seconds: float, load: float | None = None, cores: int | None = None) -> float:
    """A limit of seconds on a machine of this load (default: this one), where all takes as many times longer as the
    load is per core; at most 24 times."""
    with contextlib.suppress(OSError):
        load = os.getloadavg()[0] if load is None else load
    return seconds * min(24.0, max(1.0, (load or 0.0) / (cores or os.cpu_count() or 1)))


def starvation() -> float:
    """Times longer for limits that leave room for a load of four per core."""
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
    return time.time() - at


def age_of(path: str | bytes) -> float:
    """Seconds since a file was last written; raises an OSError if it does not exist."""
    return seconds_since(os.stat(path).st_mtime)


class ClockReading(NamedTuple):
    boot: str
    uptime: float
    wall: float


def read_clocks(boot: str) -> ClockReading:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts the time of a suspended machine
    return ClockReading(boot, time.clock_gettime(clock), time.time())
