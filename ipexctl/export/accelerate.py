"""A plan as the configuration that `accelerate launch --config_file` of a certain version understands. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ipexctl.export.common import Exported
from ipexctl.launch.accelerate_words import FIRST_IPEX, IPEX, PROJECT, WITHOUT_IPEX, before

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.launch.plan import LaunchPlan

FIRST_MPIRUN: Final = "0.28"
FIRST_AFFINITY: Final = "0.34"
WITHOUT_PREPARE: Final = "1.8"
"""The first accelerate that no longer calls ipex.optimize by itself."""


def to_accelerate(plan: LaunchPlan, packages: Mapping[str, str], hostfile: str) -> Exported:
    """`hostfile`: where the user has one that mpirun reads, or is going to put the lines that are said beside."""
    import yaml  # costs start-up

    version = packages.get(PROJECT)
    config, notes = _config(plan, packages, version, hostfile)
    head = [f"# {len(plan.hosts)} hosts, {plan.world_size} ranks; for accelerate {version or 'as it is now'}"]
    head += [f"# accelerate launch --config_file THIS {_script(plan)}"]
    if len(plan.hosts) > 1:
        head += [f"# {hostfile}:", *(f"#   {line}" for line in plan.hostfile.splitlines())]
    return Exported("\n".join([*head, yaml.safe_dump(config, sort_keys=True).rstrip()]) + "\n", tuple(notes))


def _script(plan: LaunchPlan) -> str:
    from ipexctl.export.common import words

    return words(plan).removeprefix(f"{plan.python} ")


def _config(
    plan: LaunchPlan, packages: Mapping[str, str], version: str | None, hostfile: str
) -> tuple[dict[str, Any], list[str]]:
    many = plan.world_size > 1
    bf16 = plan.dtype_hint == "bfloat16"
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "MULTI_CPU" if many else "NO",
        "downcast_bf16": "no",
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "bf16" if bf16 else "no",
        "num_machines": len(plan.hosts),
        "num_processes": plan.world_size,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": True,
    }
    notes = []
    if version is not None and not before(version, FIRST_AFFINITY):
        config["enable_cpu_affinity"] = False
    if many:
        config |= {"main_process_ip": plan.master_addr, "main_process_port": plan.master_port or 29500}
        if version is not None and before(version, FIRST_MPIRUN):
            notes.append(f"accelerate {version} starts no mpirun: mpirun -f {hostfile} … accelerate launch … by hand")
        else:
            config["mpirun_config"] = {"mpirun_hostfile": hostfile}
            workers = next((one.value for one in plan.settings if one.name == "CCL_WORKER_COUNT"), None)
            if plan.backend == "ccl" and (version is None or before(version, WITHOUT_IPEX)):
                config["mpirun_config"]["mpirun_ccl"] = str(workers or 1)
        notes.append(
            "accelerate shares the machine's cores among its ranks and binds none: threads, cores, memory and the "
            "interface of this plan are not in its configuration"
        )
        if any(len(host.ranks) != len(plan.hosts[0].ranks) for host in plan.hosts):
            notes.append("hosts have different numbers of ranks, and accelerate gives every machine the same")
    if IPEX in packages:
        notes += _ipex(config, version)
    if plan.backend == "ccl" and version is not None and not before(version, WITHOUT_IPEX):
        notes.append(f"accelerate {version} knows no oneCCL: its ranks talk over gloo")
    return config, notes


def _ipex(config: dict[str, Any], version: str | None) -> list[str]:
    if version is not None and not before(version, WITHOUT_IPEX):
        return [f"accelerate {version} knows no IPEX, and refuses a file with ipex_config: ipex.optimize in the script"]
    config["ipex_config"] = {"ipex_enabled" if version and before(version, FIRST_IPEX) else "ipex": True}
    if version is not None and not before(version, WITHOUT_PREPARE):
        return [f"accelerate {version} doesn't call ipex.optimize by itself any more: call it in the script"]
    return []
