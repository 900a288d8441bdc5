"""Decides whether a run is alive or over: every answer to that question, with its limits side by side.

In: the record of a run, or the age of its last sign, or what a probe saw of its supervisor. Out: a `Liveness`, or the
`Sight` of one host. The rule: a record that says how the run ended is the answer; else its supervisor's process is, on
the machine that it runs on; from anywhere else only the time without a sign counts. Who asks, and with which limits:

    ps, follow, stop, uninstall   REPORT_LIMITS     a wrong answer is a wrong line on a screen
    a follower, in addition       WATCHED           it has seen itself that nothing was written, by its own clock
    sync                          LEASE_LIMITS      a wrong answer changes files below a run
    the retention of runs         RETENTION_LIMITS  a wrong answer removes output that can't be had again
    doctor                        sight_of          hosts may have no Python: a probe in sh brings the start time

Runs of other accounts have no record that could be read: `facts/live_runs.py` finds them by their processes alone, for
doctor and `run --exclusive`, and says nothing about the end of any.

Two questions are others: whether the ranks of a run that is ending have had time enough (`run/machine.py:
is_over`), and whether a process that has just got a signal has exited (`run/runs.py`). Processes that name the run
are better evidence than this rule; callers that remove something look for them first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from ipexctl.node.common.records import RunStatus

Liveness = Literal["live", "starting", "dead", "over", "unknown"]
"""With a record: `live`, `over`, or `dead` if its supervisor has died before it was over. Without one, as on every node
but node0: `starting` while its files are new, then `unknown`."""
RESERVED_FILE = "reserved"
"""Empty, in the run's directory on a host that a run with an mpirun may use later: no process there shows that it is
not over. The supervisor removes it at the end, or a rank that was there."""
DAY = 86400.0


class SilenceLimits(NamedTuple):
    """Seconds without a sign of a run after which it counts as dead; long where a mistake would destroy files."""

    remote: float
    """For a machine whose processes can't be seen: its supervisor writes a status every few seconds, but its clock may
    differ, and ranks without a supervisor there write nothing."""
    job: float
    """For a job file, which goes when the ranks have read it; it stays while the run may restart."""
    files: float
    """For other files of a run that may be about to start."""


REPORT_LIMITS = SilenceLimits(remote=120.0, job=DAY, files=60.0)
"""For the user: ps, follow, stop, uninstall. Uninstall sees the processes of all hosts."""
LEASE_LIMITS = SilenceLimits(remote=DAY, job=math.inf, files=20.0)
"""For a synced tree, which may change once no run uses it. A lease ends with the machine's boot, too."""
RETENTION_LIMITS = SilenceLimits(remote=30 * DAY, job=DAY, files=3600.0)
"""For the output of a run, which can't be had again."""


WATCHED = 20.0
"""Seconds without a new status that confirm to a follower that a supervisor on another machine has died, if the status
is old: the clocks of the machines may differ by minutes."""

Sight = Literal["alive", "gone", "unknown"]
"""What one host shows of a supervisor: `gone` only on node0 itself, whose process it was."""


def sight_of(
    is_here: bool | None, machine: str | None, boot: str | None, *, hostname: str | None, host_boot: str | None
) -> Sight:
    """By a probe of a host: whether it has the process with the recorded pid and start time (None: not known).

    `machine` and `boot` are the recorded ones of node0. Names of hosts may repeat, and a reboot changes the boot id:
    then the same pid says nothing. Records of older versions have no boot id.
    """
    if is_here:
        return "alive"
    is_node0 = machine is not None and machine == hostname and boot in (None, host_boot)
    return "gone" if is_here is False and is_node0 else "unknown"


def age_for_follower(age: float, unchanged_for: float) -> float:
    """The age of a status for REPORT_LIMITS, for a caller who has seen no new one for so many seconds."""
    return unchanged_for + (REPORT_LIMITS.remote - WATCHED if age >= REPORT_LIMITS.remote else 0.0)


def liveness_of(
    status: RunStatus | None, age: float, limits: SilenceLimits, *, has_job: bool = False, is_elsewhere: bool = False
) -> Liveness:
    """`age`: seconds since its last sign, by the caller's clock. A copy of a run must not be asked about.

    Only for a run without a record: `has_job`, and whether its ranks are `is_elsewhere`, on another machine that shares
    the home.
    """
    if status is not None:
        if status.is_over:
            return "over"
        is_local = status.supervisor.is_of_this_machine  # after a reboot it is dead at once
        return "live" if (status.supervisor.is_alive if is_local else age < limits.remote) else "dead"
    limit = limits.remote if is_elsewhere else limits.job if has_job else limits.files
    return "starting" if age < limit else "unknown"
