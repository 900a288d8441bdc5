"""A run as the registry of the control machine has it, for tests of what reads it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.host import Host
from ipexctl.node.common.plan import HostPlan, Plan, RankPlan
from ipexctl.node.common.run_options import RunOptions


def with_ranks(plan: Plan, hosts: Sequence[str], ranks: Sequence[str]) -> Plan:
    """The plan with these hosts and nothing else. The first is node0. `ranks`: host of each rank."""
    numbers: dict[str, list[int]] = {name: [] for name in (*hosts, *ranks)}
    for number, name in enumerate(ranks):
        numbers[name].append(number)
    known = [
        HostPlan(name, name, name, tuple(RankPlan(number, at, name, (), 0) for at, number in enumerate(own)), None)
        for name, own in numbers.items()
    ]
    chosen, others = (tuple(host for host in known if bool(host.ranks) is has) for has in (True, False))
    stores = {name: plan.stores.get(name, hosts[0]) for name in numbers}
    return plan._replace(node0=hosts[0], hosts=chosen, spares=others, stores=stores)


def run_record(
    run: str,
    node0: Host,
    home: str,
    python: str,
    script: str = "",
    *,
    env: str | None = None,
    world_size: int | None = None,
    hosts: Sequence[str] = (),
    stores: Sequence[str] = (),
    ranks: Sequence[str] = (),
    cwd: str = "",
    job: str = "",
    asked: dict[str, Any] | None = None,
    **others: Any,
) -> RunRecord:
    """`ranks`: the host of each; without it, one on each of `hosts`, or `world_size` in turns. `others`: fields of the
    record."""
    hosts = hosts or stores or (node0.name,)
    ranks = ranks or tuple(islice(cycle(hosts), len(hosts) if world_size is None else world_size))
    given = RunOptions(argv=(script,) if script else ())._replace(**(asked or {}))
    plan = Plan(run, home, node0.name, given, python=python, env=env, cwd=cwd, job=job, first_world_size=len(ranks))
    plan = plan._replace(stores={name: name if not stores or name in stores else stores[0] for name in hosts})
    plan = with_ranks(plan, hosts, ranks)
    return RunRecord(run, node0, home, python, plan, **others)
