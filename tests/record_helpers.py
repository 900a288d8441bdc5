"""A run as the registry of the control machine has it, for tests of what reads it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

from ipexctl.homes.registry import RunRecord
from ipexctl.hosts.host import Host
from ipexctl.node.common.asked import Asked
from ipexctl.node.common.plan import Plan, with_ranks


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
    is_queued: bool = False,
    **others: Any,
) -> RunRecord:
    """`ranks`: the host of each; without it, one on each of `hosts`, or `world_size` in turns. `others`: fields of the
    record."""
    hosts = hosts or stores or (node0.name,)
    ranks = ranks or tuple(islice(cycle(hosts), len(hosts) if world_size is None else world_size))
    given = Asked(argv=(script,) if script else ())._replace(**(asked or {}))
    plan = Plan(run, home, node0.name, given, python=python, env=env, cwd=cwd, job=job, first_world_size=len(ranks))
    if not is_queued:
        plan = plan._replace(stores={name: name if not stores or name in stores else stores[0] for name in hosts})
        plan = with_ranks(plan, hosts, ranks)
    return RunRecord(run, node0, home, python, plan, **others)
