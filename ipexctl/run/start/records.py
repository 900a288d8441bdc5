"""The record of a run for the registry of the control machine. Pure."""

from __future__ import annotations

import time

from ipexctl.hosts.host import Host
from ipexctl.launch.request import Gathered
from ipexctl.node.common.plan import Plan
from ipexctl.remote.connector import ConnectOptions
from ipexctl.run.registry import RunRecord


def nodes_of(context: Gathered, plan: Plan) -> tuple[Host, ...]:
    """Node0, which may be without ranks, and the hosts with ranks in some attempt."""
    return tuple(host for host in context.hosts if host.name in plan.names)


def new_record(context: Gathered, plan: Plan, connect: ConnectOptions) -> RunRecord:
    spec = context.spec
    return RunRecord(
        id=plan.id,
        node0=context.hosts[0],
        home=context.home,
        python=context.env.python,
        source=plan,
        started=time.time(),
        nodes=nodes_of(context, plan),
        host_keys=connect.host_keys,
        connect_timeout=connect.connect_timeout,
        transport=connect.starter.name,
        project=str(spec.project.root),
        options=spec.options,
        typed=spec.typed,
    )


def logind_notes(context: Gathered) -> tuple[str, ...]:
    name = context.hosts[0].name
    logind = context.facts[name].logind
    if logind is None or not logind.kill_user_processes or logind.linger:
        return ()
    note = f"{name}: logind ends all processes of an account at its last logout, and the run with them"
    return (f"{note}; `loginctl enable-linger` there, once, prevents that",)
