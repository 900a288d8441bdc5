"""A small plan of a run, for tests of what the agent does with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ipexctl.launch.spec import RunSpec
from ipexctl.node.common.plan import HostPlan, LauncherChoice, Plan, RankPlan, Setting
from ipexctl.node.common.run_options import CommandKind, RunOptions

RANK_LINE = ("python", "-IS", "agent.zip", "run.rank", "/h/runs/r/job.json")


def spec_of(kind: CommandKind = "script", argv: tuple[str, ...] = ("train.py",), **fields: Any) -> RunSpec:
    """A spec with these fields, of `RunOptions` or its own. A secret is empty unless `secrets` has its value."""
    empty = {export.name: "" for export in fields.get("exports", ()) if export.value is None}
    asked = RunOptions(kind, argv, is_behind_dashes=kind == "command")
    return changed(RunSpec(asked, secrets=empty), **fields)


def changed(spec: RunSpec, **fields: Any) -> RunSpec:
    asked = {name: value for name, value in fields.items() if name in RunOptions._fields}
    own = {name: value for name, value in fields.items() if name not in asked}
    return replace(spec, asked=spec.asked._replace(**asked), **own)


def small_plan(
    of_ranks: Sequence[str] = ("node1",),
    spares: Sequence[str] = (),
    *,
    asked: Mapping[str, Any] | None = None,
    variables: Mapping[str, str | None] | None = None,
    ranks: Mapping[int, Mapping[str, Any]] | None = None,
    **fields: Any,
) -> Plan:
    """`of_ranks`: the host of each rank; of those of `spares`, too. `ranks`: fields of some ranks."""
    found: dict[str, list[RankPlan]] = {}
    for number, name in enumerate((*of_ranks, *spares)):
        own = found.setdefault(name, [])
        rank = RankPlan(number, len(own), name, (), 1)
        own.append(rank._replace(**(ranks or {}).get(number, {})))
    hosts = tuple(HostPlan(name, name, name, tuple(own), None) for name, own in found.items())
    settings = tuple(Setting(name, value, "of the test") for name, value in (variables or {}).items())
    given: dict[str, Any] = {
        "id": "r",
        "home": "/h",
        "node0": of_ranks[0],
        "flavor": "mpich",
        "launcher": LauncherChoice("mpirun", "", "/opt/mpirun"),
        "argv": ("/opt/mpirun", "-n", str(len(of_ranks)), *RANK_LINE),
        "launcher_env": (),
        "settings": settings,
        "master_addr": of_ranks[0],
        "master_port": None,
        "backend": "gloo",
        "backend_reason": "",
        "python": "python3",
        "env": None,
        "stack": None,
        "candidates": (),
        "command": ("python", "train.py"),
        "cwd": "/h",
        "files": (),
        "has_starters": False,
        "stores": {host.name: host.name for host in hosts},
        "first_world_size": len(of_ranks),
        **fields,
    }
    chosen = tuple(host for host in hosts if host.name in of_ranks)
    waiting = tuple(host for host in hosts if host.name not in of_ranks)
    return Plan(asked=RunOptions(**{"argv": ("train.py",), **(asked or {})}), hosts=chosen, spares=waiting, **given)
