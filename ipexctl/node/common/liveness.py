"""Tells whether a run is over, as far as one host can know: the rule of the agent for reports and for removals.

Processes that name the run are better evidence than this rule; callers that remove something look for them first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from ipexctl.node.common.records import RunStatus

Liveness = Literal["live", "starting", "dead", "over", "unknown"]
"""With a record: `live`, `over`, or `dead` if its supervisor has died before it was over. Without one, as on every node
but node0: `starting` while its files are new, then `unknown`."""
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
