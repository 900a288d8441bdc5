"""The records of a start: for the registry, and for the supervisor. Pure.

`pipeline.py` stores the first; `Launch` in `begin.py` sends the others to node0.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ipexctl.hosts.home import find_leaders
from ipexctl.node.common.job import Master, Notification, RankPlacement, StartRequest
from ipexctl.node.common.limits import NOTIFY, NOTIFY_CLAIM
from ipexctl.node.run.host_pool import start_with
from ipexctl.node.run.rank_wrappers import ADDRESSES
from ipexctl.run.registry import RunRecord
from ipexctl.run.start.begin import File, LaunchRecords, common_job
from ipexctl.run.start.pool import host_pool
from ipexctl.spec import asked_of

if TYPE_CHECKING:
    from ipexctl.call_options import CallOptions
    from ipexctl.hosts.host import Host
    from ipexctl.launch.request import Gathered
    from ipexctl.node.common.plan import Plan
    from ipexctl.remote.connector import ConnectOptions
    from ipexctl.run.retention import RetentionLimits
    from ipexctl.run.start.call import RunCall
    from ipexctl.run.start.project import ProjectLocation
    from ipexctl.spec import RunSpec


def nodes_of(context: Gathered, plan: Plan) -> tuple[Host, ...]:
    """Node0, which may be without ranks, and the hosts with ranks."""
    names = {host.name for host in plan.hosts}
    return (context.hosts[0], *(host for host in context.hosts[1:] if host.name in names))


def new_record(
    run: str, context: Gathered, spec: RunSpec, project: ProjectLocation, options: CallOptions, connect: ConnectOptions
) -> RunRecord:
    """The record of a run without a place, which a submitted run gets when it begins."""
    return RunRecord(
        id=run,
        node0=context.hosts[0],
        home=context.home,
        python=context.env.python,
        script=" ".join(spec.argv)[:200],
        env=context.env.name or context.env.python,
        started=time.time(),
        host_keys=connect.host_keys,
        connect_timeout=connect.connect_timeout,
        stores=(context.hosts[0].name,),
        nodes=context.hosts[:1],
        again=options.hosts,
        again_run=options.run,
        transport=connect.starter.name,
        job=context.job,
        project=str(project.root),
        asked=asked_of(spec),
    )


def run_record(
    run: str, context: Gathered, plan: Plan, whole: Plan, call: RunCall, connect: ConnectOptions
) -> RunRecord:
    """`whole`: the plan for every host of the pool. Equals `plan` unless spares wait."""
    nodes = nodes_of(context, whole)
    leaders = find_leaders([host.name for host in nodes], context.stores.__getitem__)
    return replace(
        new_record(run, context, call.spec, call.project, call.options, connect),
        world_size=plan.world_size,
        hosts=tuple(host.name for host in nodes),
        stores=tuple(dict.fromkeys(leaders.values())),
        nodes=nodes,
        ranks=tuple(rank.host for rank in plan.ranks),
        typed_options=call.typed.options,
        typed_words=call.typed.words,
        typed_in=call.typed.directory,
        first_world_size=call.first_world_size,
        resumed=call.resumed,
    )


def launch_records(
    record: RunRecord,
    context: Gathered,
    whole: Plan,
    spec: RunSpec,
    retention: RetentionLimits,
) -> LaunchRecords:
    """`whole`: the plan for every host of the pool."""
    plan, stores, pool = whole, context.stores, host_pool(context, spec, whole, record.rundir)
    files = [[File(f.name, f.text.encode(), f.mode) for f in plan.files if f.is_everywhere == e] for e in (False, True)]
    words = {host.name: host.word for host in plan.hosts}
    start = StartRequest(
        argv=tuple(plan.argv),
        by_mpirun=not plan.has_starters,
        by_slurm=bool(context.job),
        ranks=tuple(RankPlacement(rank.rank, rank.host, stores[rank.host], words[rank.host]) for rank in plan.ranks),
        world_size=plan.world_size,
        nodes=len(plan.hosts),
        master=Master(plan.master_addr, plan.master_port),
        script=record.script,
        env=record.env,
        variables={setting.name: setting.value for setting in plan.launcher_env},
        setup=context.setup,
        addresses=tuple(host.address for host in plan.hosts),
        time_limit=plan.time_limit,
        restarts=spec.max_restarts,
        checkpoint=(spec.checkpoint or "") if len({stores[host.name] for host in plan.hosts}) > 1 else "",
        checkpoint_is_found=spec.checkpoint_is_found,
        hang_after=spec.hang_after,
        on_hang=spec.on_hang,
        notify=_notification(record, spec) if spec.notify else None,
        pool=pool,
    )
    if pool is not None:
        first = [host.host for host in pool.hosts[: pool.wanted]]
        addresses = ("",) * ADDRESSES  # the supervisor appends its own
        start = start_with(start._replace(argv=(*start.argv, *addresses)), first, 0)
        start = start._replace(argv=start.argv[:-ADDRESSES])
    job = common_job(plan, spec)._replace(
        setup=start.setup,
        id=record.id,
        rundir=record.rundir,
        checkpoint=start.checkpoint,
        local_rank=_local_rank_option(spec.local_rank, context.env.packages.get("torch", "")),
        first_world_size=record.first_world_size or start.world_size,
    )
    return LaunchRecords(
        record=record,
        bind=plan.hosts[0].address,
        start=start,
        job=job,
        stores=stores,
        files=files[0],
        files_everywhere=files[1],
        python_version=context.env.version,
        logind={
            host.name: context.facts[host.name].logind
            for host in (record.nodes if plan.has_starters else [record.node0])
        },
        has_starters=plan.has_starters,
        ssh_words={host.name: host.word for host in plan.hosts if any(file.name == "ssh.sh" for file in plan.files)},
        retention=retention,
        needs_in_rank=plan.adds_up or spec.meter,
    )


def _local_rank_option(option: str, torch: str) -> str:
    """As torch.distributed.launch of that version writes it."""
    is_old = torch.partition(".")[0] in ("0", "1")
    return "--local_rank" if option and is_old else option


def _notification(record: RunRecord, spec: RunSpec) -> Notification:
    return Notification(spec.notify, record.hosts, NOTIFY_CLAIM if spec.is_followed else 0.0, NOTIFY)


def logind_notes(context: Gathered) -> tuple[str, ...]:
    name = context.hosts[0].name
    logind = context.facts[name].logind
    if logind is None or not logind.kill_user_processes or logind.linger:
        return ()
    note = f"{name}: logind ends all processes of an account at its last logout, and the run with them"
    return (f"{note}; `loginctl enable-linger` there, once, prevents that",)
