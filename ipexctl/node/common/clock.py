"""The waits and ages of programs on a node: one place that looks at the clock for all of them.

In come seconds, a condition or a path; out comes what is left, whether it became true, or an age. The rule: a wait has
an end, by a clock that does not jump; an age is by the clock of files, which may. A loop with states of its own, such
as those of a run, passes the time on instead.
"""

from __future__ import annotations

import os
import time
from typing import Callable


class Countdown:
    """So many seconds from now on."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds; 0 when it is over."""
        return max(0.0, self._until - time.monotonic())

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._until

    def shorten(self, seconds: float) -> None:
        """Leave at most so many from now on."""
        self._until = min(self._until, time.monotonic() + seconds)


class Stopwatch:
    """The time since it was made, or restarted."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


def wait_until(is_true: Callable[[], object], seconds: float, pause: float) -> bool:
    """Look every `pause` seconds, for so many in all, and at least once; whether it was true."""
    countdown = Countdown(seconds)
    while not is_true():
        if countdown.is_over:
            return False
        time.sleep(pause)
    return True


def seconds_since(at: float) -> float:
    """`at`: seconds since the epoch, as of a file or a record."""
    return time.time() - at


def age_of(path: str | bytes) -> float:
    """Seconds since the last write to a file; raises an OSError if there is none."""
    return seconds_since(os.stat(path).st_mtime)
