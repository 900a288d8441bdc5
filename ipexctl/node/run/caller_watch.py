"""Notices that the call which watches a trial of `autotune` is gone: it renews the time of a file while it lives.

A run belongs to nobody and outlives its call; a trial is of no use without it. The time is compared with itself alone,
as clocks of hosts differ and jump.
"""

from __future__ import annotations

import os

NAME = "caller"
"""The file in the run's directory."""


class CallerWatch:
    """Looks at the file now and then."""

    def __init__(self, rundir: str, silence: float, now: float) -> None:
        """`silence`: seconds after which the call counts as gone; 0 for a run that does not need one."""
        self._path = os.path.join(rundir, NAME)
        self._silence, self._seen, self._changed = silence, now, 0

    def is_gone(self, now: float) -> bool:
        if not self._silence:
            return False
        try:
            changed = os.stat(self._path).st_mtime_ns
        except OSError:
            changed = self._changed
        if changed != self._changed:
            self._changed, self._seen = changed, now
        return now - self._seen > self._silence
