"""Writes a plan as a configuration for `accelerate launch --config_file` of a given version. Pure. accelerate refuses a
file with an unknown key, so each key depends on the version: mpirun since 0.28, oneCCL and IPEX only in older versions.
What accelerate has no key for (cores, memory, interface, unequal hosts) is a note.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from ipexctl.extras.export.common import ExportResult, comment, comment_command, header, require_process_group
from ipexctl.hugging_face import LAST_ACCELERATE, WITHOUT_IPEX
from ipexctl.launch.accelerate_env import FIRST_IPEX, IPEX, PROJECT, before, no_optimize
from ipexctl.node.common.plan import Plan

FIRST_MPIRUN: Final = "0.28"
_MARK: Final = "mpirun-host:"
CCL_BY_RANKS: Final = "1.8"
"""Older versions ignore mpirun_ccl on a single machine."""


def to_accelerate(plan: Plan, packages: Mapping[str, str], hostfile: str, *, has_ccl: bool = False) -> ExportResult:
    """`hostfile`: path of mpirun's hostfile. `has_ccl`: the environment has oneCCL's bindings."""
    import yaml  # imported late for a fast start

    if plan.world_size > 1:
        require_process_group(plan, "accelerate")

    version = packages.get(PROJECT, "")
    config, notes = _config(plan, packages, version, hostfile, has_ccl=has_ccl)
    if has_ccl and plan.backend_reason and config.get("mpirun_config", {}).get("mpirun_ccl") == "0":
        notes.append(
            f"mpirun_ccl is 0, for gloo, although the environment has oneCCL's bindings: {plan.backend_reason}"
        )
    words = plan.command[1:] if plan.command[0] == plan.python else plan.command
    head = [comment(f"{len(plan.hosts)} hosts, {plan.world_size} ranks; for accelerate {version or 'of today'}")]
    head += [comment_command(["accelerate", "launch", "--config_file", "THIS", *words])]
    head += header(_requirements(plan))
    if plan.world_size > 1:
        made_by = f"sed -n 's/^# {_MARK} //p' THIS > {shlex.quote(hostfile)}"
        head += [comment(f"Make the hostfile of mpirun: {made_by}")]
        head += [comment(f"{_MARK} {line}") for line in mpirun_hostfile(plan)]
    return ExportResult("\n".join([*head, yaml.safe_dump(config, sort_keys=True).rstrip()]) + "\n", tuple(notes))


def mpirun_hostfile(plan: Plan) -> tuple[str, ...]:
    """Lines of mpirun's hostfile. Each host is named by its address, like `main_process_ip`."""
    form = "{} slots={}" if plan.flavor == "openmpi" else "{}:{}"
    return tuple(form.format(host.address, len(host.ranks)) for host in plan.hosts)


def _requirements(plan: Plan) -> str:
    needed = "Needed on every host: accelerate, torch and the script's packages"
    if len(plan.hosts) > 1:
        needed += "; an mpirun on PATH, the script at the same path, and ssh from the first host to the others"
    return f"{needed}. Run it on the first host." if len(plan.hosts) > 1 else f"{needed}."


def _config(
    plan: Plan, packages: Mapping[str, str], version: str, hostfile: str, *, has_ccl: bool
) -> tuple[dict[str, Any], list[str]]:
    stated = (each.value for each in plan.settings if each.name == "ACCELERATE_MIXED_PRECISION")
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_CPU" if plan.world_size > 1 else "NO",
        "downcast_bf16": "no",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": next(stated, None) or "no",  # as `run` trains
        "num_machines": len(plan.hosts),
        "num_processes": plan.world_size,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": True,
    }
    notes = _multi_process(config, plan, version, hostfile, has_ccl=has_ccl) if plan.world_size > 1 else []
    if IPEX in packages:
        notes += _ipex(config, packages, version)
    return config, notes


def _multi_process(config: dict[str, Any], plan: Plan, version: str, hostfile: str, *, has_ccl: bool) -> list[str]:
    config |= {"main_process_ip": plan.master_addr, "main_process_port": plan.master_port or 29500}
    notes = []
    if before(version, FIRST_MPIRUN):
        notes.append(f"accelerate {version} starts no mpirun: mpirun -f {hostfile} … accelerate launch …, by hand")
    else:
        config["mpirun_config"] = {"mpirun_hostfile": hostfile}
    if before(version, WITHOUT_IPEX) or (not version and (has_ccl or plan.backend == "ccl")):
        notes += _oneccl(config, plan, version)
        if not version:
            notes.append(f"mpirun_ccl is for accelerate up to {LAST_ACCELERATE}; later ones ignore it and use gloo")
    elif plan.backend == "ccl":
        notes.append(f"{_versioned_name(version)} does not support oneCCL: its ranks use gloo")
    notes.append(
        "accelerate shares the machine's cores among its ranks and binds none: its configuration has no threads, "
        "cores, memory or interface of this plan"
    )
    if any(len(host.ranks) != len(plan.hosts[0].ranks) for host in plan.hosts):
        notes.append("hosts have different numbers of ranks, but accelerate gives every machine the same number")
    return notes


def _oneccl(config: dict[str, Any], plan: Plan, version: str) -> list[str]:
    """Set mpirun_ccl, also to 0: without it, some versions don't start, and others choose oneCCL."""
    workers = "0"
    if plan.backend == "ccl":
        workers = next((str(setting.value) for setting in plan.settings if setting.name == "CCL_WORKER_COUNT"), "1")
    if "mpirun_config" in config:
        config["mpirun_config"]["mpirun_ccl"] = workers
    is_configured = "mpirun_config" in config and (len(plan.hosts) > 1 or not before(version, CCL_BY_RANKS))
    if is_configured or plan.backend != "ccl":
        return []
    return [f"accelerate {version} does not choose oneCCL here by itself: first export CCL_WORKER_COUNT={workers}"]


def _ipex(config: dict[str, Any], packages: Mapping[str, str], version: str) -> list[str]:
    if not before(version, WITHOUT_IPEX):
        name = _versioned_name(version)
        return [f"{name} does not support IPEX and refuses a file with ipex_config: call ipex.optimize in the script"]
    config["ipex_config"] = {"ipex_enabled" if before(version, FIRST_IPEX) else "ipex": True}
    note = no_optimize(packages, "ipex_config")
    return [note] if note else []


def _versioned_name(version: str) -> str:
    return f"accelerate {version}".strip()
