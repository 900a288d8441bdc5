"""Knows how long ago the runs of a home were first seen, although the wall clock may be days ahead.

`runs/.ages.json` has the uptime of each boot at the last look, and the time that had passed by then. Time between two
boots is the wall clock's, but at most a day, so ages are rather too short than too long.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Collection, Mapping, NamedTuple

from ipexctl.node.common.files import read_json, write_json_atomically
from ipexctl.node.common.json_records import decode_valid, encode
from ipexctl.node.common.liveness import DAY

if TYPE_CHECKING:
    from ipexctl.node.common.clock import ClockReading

_FILE = ".ages.json"
_MOST_BOOTS = 16


class BootClock(NamedTuple):
    uptime: float
    passed: float


class RunTimes(NamedTuple):
    passed: float = 0.0
    """Seconds since the first look."""
    wall: float = 0.0
    """Wall time of the last look; 0 before the first."""
    boots: Mapping[str, BootClock] = {}
    seen: Mapping[str, float] = {}
    """Run → `passed` when it was first seen, or last in progress; in the order in which the runs began."""

    @property
    def ages(self) -> dict[str, float]:
        """Run → seconds since it was first seen, or was last in progress."""
        return {name: self.passed - at for name, at in self.seen.items()}

    def look(self, now: ClockReading, runs: Collection[str]) -> RunTimes:
        """Return the times as they are after a look at this moment. `runs`: those that exist; new ones in the order in
        which they began. Pure."""
        known, passed = self.boots.get(now.boot), self.passed
        if known is not None:
            passed = max(passed, known.passed + now.uptime - known.uptime)
        elif self.wall:
            passed += min(max(0.0, now.wall - self.wall), DAY)
        others = [(boot, clock) for boot, clock in self.boots.items() if boot != now.boot]
        boots = dict([*others, (now.boot, BootClock(now.uptime, passed))][-_MOST_BOOTS:])
        seen = {name: at for name, at in self.seen.items() if name in runs}
        return RunTimes(passed, now.wall, boots, {**seen, **{name: passed for name in runs if name not in seen}})

    def renew(self, active: Collection[str]) -> RunTimes:
        """Let the ages of runs in progress begin now."""
        return self._replace(seen={name: self.passed if name in active else at for name, at in self.seen.items()})


def read_times(directory: str) -> RunTimes:
    """Read what is known of the runs in this directory; empty if there is no valid file."""
    return decode_valid(RunTimes, read_json(os.path.join(directory, _FILE)))


def write_times(directory: str, times: RunTimes) -> None:
    """Keep what is known. A full disk lets ages stay too short."""
    with contextlib.suppress(OSError):  # the disk is full: the ages stay too short
        write_json_atomically(os.path.join(directory, _FILE), encode(times), durable=False)
