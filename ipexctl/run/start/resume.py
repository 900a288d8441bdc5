"""`run --resume`: plans a run anew on the hosts that are left. Pure. A run is alive if any host shows a process of it.
An unreachable host is left out. Each host keeps its number of ranks, and scripts get the
world size of the very first run, whose global batch they keep.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from ipexctl.errors import Refusal, UserError
from ipexctl.facts.live_runs import HostSnapshot
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix
from ipexctl.remote.outcome import HostError, TimedOut, Unreachable
from ipexctl.run.registry import RunRecord
from ipexctl.run.start.request import refuse_bad_rank_counts
from ipexctl.spec import RunSpec
from ipexctl.text import format_count

NO_ANSWER: Final = (Unreachable, TimedOut)


def refuse_job(record: RunRecord) -> None:
    if record.plan.job:
        raise UserError(
            f"run {record.id} was in job {record.plan.job} of the scheduler; the scheduler restarts jobs itself",
            fix=Fix("`ipexctl submit --requeue`; or type its call again in a new job"),
        )


def hosts_to_inspect(spec: RunSpec, record: RunRecord) -> tuple[Host, ...]:
    """The hosts of the call, and the run's node0 if the call leaves that out."""
    known = {host.name for host in spec.hosts}
    return (*spec.hosts, *(host for host in (record.node0,) if host.name not in known))


def resumed_spec(
    spec: RunSpec, record: RunRecord, snapshots: Mapping[str, HostSnapshot | HostError | None], typed: Collection[str]
) -> RunSpec | Refusal:
    """`snapshots`: by the name of each of `hosts_to_inspect`. `typed`: the options besides --resume.

    Raises a UserError for options that do not fit the hosts.
    """
    asked, node0 = spec.asked, record.node0.name
    alive = [
        name
        for name, snapshot in snapshots.items()
        if isinstance(snapshot, HostSnapshot) and _has_run(snapshot, record.id)
    ]
    if alive and isinstance(snapshots[node0], NO_ANSWER):
        return Refusal(
            f"run {record.id} still has processes on {fold(alive)}, and its node0 ({node0}) cannot be reached",
            Fix(f"they exit within a minute after losing {node0}; then: `ipexctl run --resume {record.id}`"),
            tuple(alive),
        )
    if alive:
        return Refusal(f"run {record.id} is alive on {fold(alive)}", Fix(f"`ipexctl stop {record.id}`"), tuple(alive))
    left = tuple(host for host in spec.hosts if not isinstance(snapshots[host.name], NO_ANSWER))
    away = tuple(host.name for host in spec.hosts if host not in left)
    if len(left) < (asked.min_hosts or 1):
        minimum = f", fewer than --min-hosts {asked.min_hosts}" if asked.min_hosts else ""
        reason = next(snapshot.reason for snapshot in snapshots.values() if isinstance(snapshot, NO_ANSWER))
        return Refusal(
            f"{format_count(len(left), 'host')} of {len(spec.hosts)} answer{'s' * (len(left) == 1)}{minimum}; "
            f"{fold(away)}: {reason}",
            Fix(f"when more answer: `ipexctl run --resume {record.id}`")
            + (Fix(f"; or with fewer: `ipexctl run --resume {record.id} --min-hosts {len(left)}`") if left else ""),
            away,
            3,
        )
    found = replace(
        spec,
        hosts=left,
        options=spec.options.without(away),
        asked=asked._replace(
            n=asked.n if asked.n is None or "n" in typed else max(1, asked.n * len(left) // len(spec.hosts)),
            first_world_size=record.plan.first_world_size,
            resumed=(*record.plan.asked.resumed, record.id),
        ),
    )
    refuse_bad_rank_counts(found.asked, left)
    return found


def _has_run(snapshot: HostSnapshot, run: str) -> bool:
    return any(live.run == run for live in snapshot.runs.runs)
