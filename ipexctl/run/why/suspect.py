"""Judges the windows of a run, and inspects the host of a slow rank while the run is alive."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.host import Host
from ipexctl.limits import SUSPECT_ANSWER
from ipexctl.node.common.records import RunStatus, as_dict
from ipexctl.node.run.meter.rates import waiting_of
from ipexctl.node.run.run_replies import SuspectSnapshot
from ipexctl.node.run.slow_rank import SuspectRequest
from ipexctl.remote.node_call import call
from ipexctl.remote.outcome import HostError
from ipexctl.remote.session import Session
from ipexctl.run.why.run_snapshot import RunSnapshot
from ipexctl.run.why.slow_verdict import RunSetup, SlowFinding, SlowVerdict, find_slow_ranks, needs_snapshot
from ipexctl.run.windows import RunWindows


def judge_windows(
    windows: RunWindows, snapshot: RunSnapshot, looks: Mapping[int, SuspectSnapshot] | None = None
) -> SlowVerdict:
    """`looks`: rank → what runs beside it now."""
    status, plan = snapshot.status, snapshot.context.plan
    hosts = {row.rank: row.host for row in status.ranks}
    backend, allreduce = str(plan.get("backend")), str(as_dict(plan.get("allreduce")).get("mode"))
    waiting = waiting_of(backend, allreduce, len(set(hosts.values())))
    return find_slow_ranks(windows, RunSetup(hosts, waiting, status.network, status.levers, status.amx_idle), looks)


def suspect_of(verdict: SlowVerdict) -> SlowFinding | None:
    """The worst rank that is slow now, if inspecting its host can tell more."""
    current = (found for found in verdict.findings if found.is_current)
    return next((found for found in current if needs_snapshot(found.cause)), None)


def inspect_suspect(
    record: RunRecord,
    status: RunStatus,
    suspect: SlowFinding,
    open_session: Callable[[Host], Session],
) -> SuspectSnapshot:
    """Look at the suspect's host for a second. Raises a HostError if that is impossible."""
    host = next((host for host in record.nodes if host.name == suspect.host), None)
    pid = next((row.pid for row in status.ranks if row.rank == suspect.rank), None)
    if host is None or pid is None:
        raise HostError("the run's record does not say how to reach it")
    request: SuspectRequest = {"home": record.home, "id": record.id, "pid": pid}
    reply = call(
        open_session(host),
        "run.slow_rank",
        "inspect",
        request,
        record.agent if host == record.node0 else record.agent._replace(python=""),
        label="look at the slow rank",
        timeout=SUSPECT_ANSWER,
    )
    return reply.decode(SuspectSnapshot)
