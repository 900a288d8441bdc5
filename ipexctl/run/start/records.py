"""The record of a run for the registry of the control machine. Pure."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ipexctl.call_options import CallOptions
from ipexctl.hosts.host import Host
from ipexctl.launch.request import Gathered
from ipexctl.node.common.plan import Plan
from ipexctl.remote.connector import ConnectOptions
from ipexctl.run.registry import RunRecord
from ipexctl.run.start.call import RunCall
from ipexctl.spec import RunSpec, asked_of

if TYPE_CHECKING:
    from ipexctl.run.start.project import ProjectLocation


def nodes_of(context: Gathered, plan: Plan) -> tuple[Host, ...]:
    """Node0, which may be without ranks, and the hosts with ranks in some attempt."""
    return tuple(host for host in context.hosts if host.name in plan.names)


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


def run_record(context: Gathered, plan: Plan, call: RunCall, connect: ConnectOptions) -> RunRecord:
    nodes = nodes_of(context, plan)
    return replace(
        new_record(plan.id, context, call.spec, call.project, call.options, connect),
        world_size=plan.world_size,
        hosts=plan.names,
        stores=plan.leaders,
        nodes=nodes,
        ranks=tuple(rank.host for rank in plan.ranks),
        typed_options=call.typed.options,
        typed_words=call.typed.words,
        typed_in=call.typed.directory,
        first_world_size=call.spec.first_world_size,
        resumed=call.resumed,
    )


def logind_notes(context: Gathered) -> tuple[str, ...]:
    name = context.hosts[0].name
    logind = context.facts[name].logind
    if logind is None or not logind.kill_user_processes or logind.linger:
        return ()
    note = f"{name}: logind ends all processes of an account at its last logout, and the run with them"
    return (f"{note}; `loginctl enable-linger` there, once, prevents that",)
