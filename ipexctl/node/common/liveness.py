"""Decides whether a run is alive or over, with all the limits side by side.

A record that says how the run ended is the answer; else the supervisor's process is, on its own machine; from elsewhere
only the time without a sign counts. Who asks, and with which limits:

    ps, follow, stop, uninstall   REPORT_LIMITS     a wrong answer is a wrong line on a screen
    a follower, in addition       WATCHED           it has seen itself that nothing was written, by its own clock
    sync                          LEASE_LIMITS      a wrong answer changes files below a run
    the retention of runs         RETENTION_LIMITS  a wrong answer removes output that can't be had again
    doctor                        sight_of          hosts may have no Python: a probe in sh brings the start time

Records of other accounts' runs can't be read: `facts/live_runs.py` finds their processes. Two questions are decided
elsewhere: whether the ranks of an ending run had time enough (`run/machine.py: is_over`), and whether a signalled
process has exited (`run/runs.py`). Callers that remove something look for processes of the run first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from ipexctl.node.common.records import RunStatus

Liveness = Literal["live", "starting", "dead", "over", "unknown"]
"""With a record: `live`, `over`, or `dead` if its supervisor died too early. Without one, as on every node but node0:
`starting` while its files are new, then `unknown`."""
RESERVED_FILE = "reserved"
"""Empty file of a run with mpirun, on a host it may use later where no process shows that it is not over. Removed at
the end by the supervisor, or by a rank that was there."""
DAY = 86400.0


class SilenceLimits(NamedTuple):
    """Seconds without a sign until a run counts as dead; long where a mistake would destroy files."""

    remote: float
    """For a machine whose processes can't be seen: the supervisor writes a status every few seconds, but clocks may
    differ, and ranks without a supervisor write nothing."""
    job: float
    """For a job file: removed once the ranks have read it, but kept while the run may restart."""
    files: float
    """For other files of a run that may be about to start."""


REPORT_LIMITS = SilenceLimits(remote=120.0, job=DAY, files=60.0)
"""For the user: ps, follow, stop, uninstall. Uninstall sees the processes of all hosts."""
LEASE_LIMITS = SilenceLimits(remote=DAY, job=math.inf, files=20.0)
"""For a synced tree that no run may use any more. A lease also ends with the machine's boot."""
RETENTION_LIMITS = SilenceLimits(remote=30 * DAY, job=DAY, files=3600.0)
"""For a run's output, which can't be had again."""


WATCHED = 20.0
"""Seconds without a new status until a follower believes that another machine's supervisor died: their clocks may
differ by minutes."""

Sight = Literal["alive", "gone", "unknown"]
"""What one host shows of a supervisor: `gone` only on node0 itself, where it ran."""


def sight_of(
    is_here: bool | None, machine: str | None, boot: str | None, *, hostname: str | None, host_boot: str | None
) -> Sight:
    """Evaluate a probe: `is_here` tells if a process has the recorded pid and start time (None: unknown).

    `machine` and `boot` are recorded for node0. Hostnames may repeat, and after a reboot the pid says nothing. Older
    records have no boot id.
    """
    if is_here:
        return "alive"
    is_node0 = machine is not None and machine == hostname and boot in (None, host_boot)
    return "gone" if is_here is False and is_node0 else "unknown"


def age_for_follower(age: float, unchanged_for: float) -> float:
    """Age of a status for REPORT_LIMITS, if the caller saw no new one for so many seconds."""
    return unchanged_for + (REPORT_LIMITS.remote - WATCHED if age >= REPORT_LIMITS.remote else 0.0)


def liveness_of(
    status: RunStatus | None, age: float, limits: SilenceLimits, *, has_job: bool = False, is_elsewhere: bool = False
) -> Liveness:
    """`age`: seconds since its last sign, by the caller's clock. Not for copies of a run.

    `has_job` and `is_elsewhere` (its ranks are on another machine that shares the home) are for runs without a record.
    """
    if status is not None:
        if status.is_over:
            return "over"
        is_local = status.supervisor.is_of_this_machine  # after a reboot it is dead at once
        return "live" if (status.supervisor.is_alive if is_local else age < limits.remote) else "dead"
    limit = limits.remote if is_elsewhere else limits.job if has_job else limits.files
    return "starting" if age < limit else "unknown"
