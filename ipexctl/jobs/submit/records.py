"""The records of a start: of the registry, for the supervisor, and plan.json.

In: the context that was gathered, the plan, the request. Out: the values that `pipeline.py` stores and that `Launch` in
`start.py` sends to node0. Pure.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from ipexctl.hosts.home import find_leaders
from ipexctl.jobs.registry import RunRecord
from ipexctl.jobs.submit.preflight.imports import install_command, normalised
from ipexctl.jobs.submit.start import File, LaunchSpec, job_of_plan
from ipexctl.launch.plan import LaunchPlan, to_json
from ipexctl.node.common.job import Master, Notification, RankPlacement, StartRequest
from ipexctl.node.common.limits import CALLER_SILENCE, NOTIFY, NOTIFY_CLAIM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.call_options import CallOptions
    from ipexctl.hosts.host import Host
    from ipexctl.jobs.retention import RetentionLimits
    from ipexctl.jobs.submit.commit import Commit
    from ipexctl.jobs.submit.context import RunContext
    from ipexctl.jobs.submit.request import RunRequest
    from ipexctl.remote.connector import ConnectOptions


def nodes_of(context: RunContext, plan: LaunchPlan) -> tuple[Host, ...]:
    """Node0, which may be without ranks, and the hosts with ranks."""
    names = {host.name for host in plan.hosts}
    return (context.hosts[0], *(host for host in context.hosts[1:] if host.name in names))


def run_record(
    run: str,
    context: RunContext,
    plan: LaunchPlan,
    request: RunRequest,
    connect: ConnectOptions,
    call: CallOptions,
    project: str = "",
) -> RunRecord:
    nodes = nodes_of(context, plan)
    leaders = find_leaders([host.name for host in nodes], context.stores.__getitem__)
    return RunRecord(
        id=run,
        node0=nodes[0],
        home=context.home,
        python=context.env.python,
        script=" ".join(request.argv)[:200],
        env=plan.env or plan.python,
        started=time.time(),
        world_size=plan.world_size,
        hosts=tuple(host.name for host in nodes),
        host_keys=connect.host_keys,
        connect_timeout=connect.connect_timeout,
        stores=tuple(dict.fromkeys(leaders.values())),
        nodes=nodes,
        ranks=tuple(rank.host for rank in plan.ranks),
        cwd=plan.cwd,
        again=call.hosts,
        again_run=call.run,
        transport=connect.starter.name,
        job=context.job,
        project=project,
        is_trial=request.trial,
    )


def launch_spec(
    record: RunRecord,
    context: RunContext,
    plan: LaunchPlan,
    request: RunRequest,
    retention: RetentionLimits,
) -> LaunchSpec:
    stores = context.stores
    files = [[File(f.name, f.text.encode(), f.mode) for f in plan.files if f.is_everywhere == e] for e in (False, True)]
    start = StartRequest(
        argv=tuple(plan.argv),
        by_mpirun=plan.flavor != "none",
        by_slurm=bool(context.job),
        ranks=tuple(RankPlacement(rank.rank, rank.host, stores[rank.host]) for rank in plan.ranks),
        world_size=plan.world_size,
        nodes=len(plan.hosts),
        master=Master(plan.master_addr, plan.master_port),
        script=record.script,
        env=record.env,
        variables={setting.name: setting.value for setting in plan.launcher_env},
        setup=context.setup,
        addresses=tuple(host.address for host in plan.hosts),
        time_limit=plan.time_limit,
        restarts=request.max_restarts,
        checkpoint=(request.checkpoint or "") if len({stores[host.name] for host in plan.hosts}) > 1 else "",
        checkpoint_is_found=request.checkpoint_is_found,
        hang_after=request.hang_after,
        on_hang=request.on_hang,
        notify=_notification(record, request) if request.notify else None,
        caller_silence=CALLER_SILENCE if request.trial else 0.0,
    )
    job = job_of_plan(plan)._replace(
        setup=start.setup,
        id=record.id,
        rundir=record.rundir,
        checkpoint=start.checkpoint,
        checkpoint_is_found=start.checkpoint_is_found,
        meter=request.meter,
        metric=request.metric or "",
        trial=request.trial,
    )
    return LaunchSpec(
        record=record,
        bind=plan.hosts[0].address,
        start=start,
        job=job,
        stores=stores,
        files=files[0],
        files_everywhere=files[1],
        python_version=context.env.version,
        logind=context.facts[record.node0.name].logind,
        retention=retention,
        needs_in_rank=plan.adds_up or request.meter,
    )


def _notification(record: RunRecord, request: RunRequest) -> Notification:
    return Notification(request.notify, record.hosts, NOTIFY_CLAIM if request.is_followed else 0.0, NOTIFY)


def plan_document(
    context: RunContext, plan: LaunchPlan, request: RunRequest, commit: Commit | None, before: Mapping[str, float]
) -> str:
    """The text of plan.json. `before`: seconds that each step before the start took."""
    install = install_command(context.env_records(plan.env), request.env) if plan.env else ""
    packages = sorted(map(normalised, context.env.packages)) if plan.env else []
    more = {"install": install, "packages": packages, "commit": commit and commit._asdict(), "before_start": before}
    return json.dumps({**to_json(plan), **more}, indent=1)


def logind_notes(context: RunContext) -> tuple[str, ...]:
    name = context.hosts[0].name
    logind = context.facts[name].logind
    if logind is None or not logind.kill_user_processes or logind.linger:
        return ()
    note = f"{name}: logind ends all processes of an account at its last logout, and the run with them"
    return (f"{note}; `loginctl enable-linger` there, once, prevents that",)
