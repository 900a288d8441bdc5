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


def wait_until(is_true: Callable[[], object], seconds: float, pause: float) -> bool:
    """Look every `pause` seconds, for so many in all, and at least once; whether it was true."""
    countdown = Countdown(seconds)
    while not is_true():
        if countdown.is_over:
            return False
        time.sleep(pause)
    return True


def age_of(path: str | bytes) -> float:
    """Seconds since the last write to a file; raises an OSError if there is none."""
    return time.time() - os.stat(path).st_mtime
