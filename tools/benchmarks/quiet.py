"""Waits until nothing else runs: a figure beside other work is none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from .harness import Failed, say

MOST_LOAD = 1.0
LONGEST_WAIT = 600.0
"""Seconds for the load of making the lab, or of the part before, to sink: it halves in 42 s."""
_POLL = 5.0


def await_quiet(
    what: str,
    load: Callable[[], float] = lambda: os.getloadavg()[0],
    sleep: Callable[[float], None] = time.sleep,
    wait: float = LONGEST_WAIT,
) -> float:
    """Return the load once it is at most 1. Raises Failed if it stays above."""
    if (now := load()) > MOST_LOAD:
        say(f"{what}: waiting for a load of {MOST_LOAD:g}, which is {now:.1f}")
    while (now := load()) > MOST_LOAD:
        if wait <= 0:
            raise Failed(f"{what} is not measured: something else runs here, at a load of {now:.1f}")
        sleep(_POLL)
        wait -= _POLL
    return now
