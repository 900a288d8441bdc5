"""Decides whether a run is alive or over.

If the run's record says how it ended, it is over. Otherwise the supervisor's process decides on its own machine, and on
other machines the time since the last sign of life. Other accounts' records can't be read; `facts/live_runs.py` finds
their processes. Callers that remove something look for processes of the run first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from ipexctl.node.common.records import RunStatus

Liveness = Literal["live", "starting", "dead", "over", "unknown"]
"""With a record: `live`, `over`, or `dead` if the supervisor died before the end. Without a record, as on every node
but node0: `starting` while the run's files are new, then `unknown`."""
RESERVED_FILE = "reserved"
"""Empty file of a run with mpirun on a host without ranks, where no process shows that the run is not over.
Removed at the end."""
DAY = 86400.0


class SilenceLimits(NamedTuple):
    """Seconds without a sign of life until a run counts as dead; long if a mistake would destroy files."""

    remote: float
    """Seconds for a supervisor on another machine. It writes a status every few seconds, but clocks may differ."""
    job: float
    """Seconds for a run without a record but with a job file, which stays while the run may restart."""
    files: float
    """Seconds for a run without a record and a job file, which may be about to start."""


REPORT_LIMITS = SilenceLimits(remote=120.0, job=DAY, files=60.0)
LEASE_LIMITS = SilenceLimits(remote=DAY, job=math.inf, files=20.0)
RETENTION_LIMITS = SilenceLimits(remote=30 * DAY, job=DAY, files=3600.0)


WATCHED = 20.0
"""Seconds without a new status until a follower counts a supervisor on another machine as dead, by its own clock."""

Sight = Literal["alive", "gone", "unknown"]
"""What a probe on one host says of a supervisor. `gone` is certain only on node0, where the supervisor ran."""


def sight_of(
    is_here: bool | None, machine: str | None, boot: str | None, *, hostname: str | None, host_boot: str | None
) -> Sight:
    """Evaluate a probe. `is_here`: whether a process has the recorded pid and start time (None: unknown).

    `machine` and `boot` must match, because hostnames may repeat and a reboot reuses pids. Older records have no boot
    id.
    """
    if is_here:
        return "alive"
    is_node0 = machine is not None and machine == hostname and boot in (None, host_boot)
    return "gone" if is_here is False and is_node0 else "unknown"


def age_for_follower(age: float, unchanged_for: float) -> float:
    """Return the age of a status for REPORT_LIMITS. `unchanged_for`: seconds for which the caller saw no newer
    status."""
    return unchanged_for + (REPORT_LIMITS.remote - WATCHED if age >= REPORT_LIMITS.remote else 0.0)


def liveness_of(
    status: RunStatus | None, age: float, limits: SilenceLimits, *, has_job: bool = False, is_elsewhere: bool = False
) -> Liveness:
    """Return the liveness of a run on this host; not for copies of a run. `age`: seconds since its last sign of life.

    Only runs without a record need `has_job` and `is_elsewhere` (ranks run on another machine that shares the home).
    """
    if status is not None:
        if status.is_over:
            return "over"
        is_local = status.supervisor.is_of_this_machine  # after a reboot it is dead at once
        return "live" if (status.supervisor.is_alive if is_local else age < limits.remote) else "dead"
    limit = limits.remote if is_elsewhere else limits.job if has_job else limits.files
    return "starting" if age < limit else "unknown"
