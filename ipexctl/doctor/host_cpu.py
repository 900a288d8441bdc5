"""Rules over a host's processors: instruction sets, usable cores, NUMA nodes. Pure.

Only a wrong architecture is a fail: without AVX2 PyTorch still runs, several times slower, and all other ranks wait.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ipexctl.doctor.context import usable_cores
from ipexctl.doctor.finding import Finding
from ipexctl.facts.cpu import TIERS, X86
from ipexctl.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ipexctl.doctor.context import HostContext, HostRule
    from ipexctl.doctor.finding import Level
    from ipexctl.facts.cpu import Cpu, Tier

LEAVE_OUT: Final = "leave the host out: --limit '!NAME'"


def arch(host: HostContext) -> Iterator[Finding]:
    machine = host.facts.cpu.arch or host.facts.system.arch
    if machine is None or machine in X86:
        return
    if machine in ("aarch64", "arm64"):
        message = (
            "An ARM processor: IPEX, oneCCL and Intel MPI exist for x86-64 only. "
            "Stock PyTorch would run on this host, but not in one job with x86-64 hosts"
        )
    else:
        message = (
            f"A {machine} processor: IPEX, oneCCL and Intel MPI exist for x86-64 only, so no rank can run on this host"
        )
    yield Finding("cpu.arch", "fail", message, LEAVE_OUT)


def instructions(host: HostContext) -> Iterator[Finding]:
    cpu = host.facts.cpu
    if (cpu.arch or host.facts.system.arch or (X86[0] if "sse2" in cpu.flags else "")) not in X86:
        return
    match cpu.tier:
        case "unsupported":
            yield Finding(
                "cpu.no_avx2",
                "warn",
                "The processor has no AVX2: IPEX can't run on it; PyTorch can, several times slower, and all other "
                "ranks wait for those on this host",
                f"{LEAVE_OUT}; if it is a VM, set its CPU model to host-passthrough",
            )
        case "avx2":
            yield Finding(
                "cpu.no_avx512",
                "info",
                "AVX2 is the best this processor has: fp32 training works at about half an AVX-512 machine's rate, "
                "bf16 is slower still",
                "train in fp32",
            )
        case "avx512":
            yield Finding(
                "cpu.no_bf16",
                "info",
                "AVX-512, but no bf16 instructions: bf16 is converted in software and runs slower than fp32",
                "train in fp32; leave out --bf16 and mixed_precision",
            )


def hidden(host: HostContext) -> Iterator[Finding]:
    """Compare the flags with the CPU model's: old kernels and hypervisors hide some."""
    cpu = host.facts.cpu
    model = _model_tier(cpu)
    if model is None or cpu.tier is None or TIERS.index(cpu.tier) >= TIERS.index(model[1]):
        return
    name, tier = model
    yield Finding(
        "cpu.isa_hidden",
        "warn",
        f"{name} has {_TIER_NAMES[tier]}, but the kernel or hypervisor hides it: training runs slower than it could",
        "AMX needs kernel 5.16, or RHEL 8.6; in a VM, set its CPU model to host-passthrough",
    )


_TIER_NAMES: Final[Mapping[Tier, str]] = {"amx": "AMX", "avx512_bf16": "AVX-512 with bf16", "avx512": "AVX-512"}
_MODEL_TIERS: Final[Mapping[int, tuple[str, Tier]]] = {
    106: ("Ice Lake", "avx512"),
    108: ("Ice Lake", "avx512"),
    143: ("Sapphire Rapids", "amx"),
    207: ("Emerald Rapids", "amx"),
    173: ("Granite Rapids", "amx"),
    174: ("Granite Rapids", "amx"),
}


def _model_tier(cpu: Cpu) -> tuple[str, Tier] | None:
    if cpu.vendor != "GenuineIntel" or cpu.family != 6 or cpu.model is None:
        return None
    if cpu.model == 85 and cpu.stepping is not None:
        return ("Cooper Lake", "avx512_bf16") if cpu.stepping >= 10 else ("Skylake or Cascade Lake", "avx512")
    return _MODEL_TIERS.get(cpu.model)


def allowed(host: HostContext) -> Iterator[Finding]:
    """Affinity and cpuset; the quota has its own rule because it is changed elsewhere."""
    cpu = host.facts.cpu
    if not cpu.siblings or not cpu.cores or cpu.affinity in (None, cpu.online):
        return
    usable = len(cpu.allowed_cores)
    if usable >= cpu.cores:
        return
    level: Level = "info" if host.facts.batch.job else "warn"
    yield Finding(
        "cpu.fewer_allowed",
        level,
        f"This account may use {usable} of the machine's {counted(cpu.cores, 'core')}: ranks and threads are planned "
        "for "
        f"{'it' if usable == 1 else 'those'} alone",
        "ask the scheduler for more cores"
        if host.facts.batch.job
        else "change the container's --cpuset-cpus, the cgroup's cpuset or a taskset in the login files",
    )


def quota(host: HostContext) -> Iterator[Finding]:
    cpu = host.facts.cpu
    if cpu.quota is None:
        return
    cores = len(cpu.allowed_cores) or cpu.cores
    if cores is None or cpu.quota >= cores:
        return
    is_fraction = cpu.quota != math.floor(cpu.quota)
    yield Finding(
        "cpu.quota",
        "warn",
        f"The cgroup allows the time of {cpu.quota:g} CPUs on {counted(cores, 'core')}: "
        + (
            "a fraction of a core stalls ranks many times a second"
            if is_fraction
            else "more threads than that are stalled"
        ),
        f"allow whole cores: the container's --cpus, the pod's limit or CPUQuota ({math.ceil(cpu.quota)} or more)",
    )


def one_core(host: HostContext) -> Iterator[Finding]:
    if not host.alone and usable_cores(host.facts.cpu) == 1:
        yield Finding(
            "cpu.one_core",
            "info",
            "One core for the rank and for its communication: oneCCL's worker would compete with the rank for it",
            "nothing to do under ipexctl run; elsewhere set CCL_WORKER_OFFLOAD=0",
        )


def smt(host: HostContext) -> Iterator[Finding]:
    cpu = host.facts.cpu
    if cpu.smt and cpu.cores and cpu.threads:
        yield Finding(
            "cpu.smt",
            "info",
            f"Hyper-threading is on: {cpu.threads} CPUs are {counted(cpu.cores, 'core')}. Training threads are "
            "counted by cores, as two on a core are slower",
            "nothing to do under ipexctl run; elsewhere count cores, not CPUs, for OMP_NUM_THREADS",
        )


def governor(host: HostContext) -> Iterator[Finding]:
    if host.facts.cpu.governor in ("powersave", "conservative"):
        yield Finding(
            "cpu.governor",
            "info",
            f"The clock governor is {host.facts.cpu.governor}: cores may be slow to reach full speed, and one slow "
            "host slows all",
            "as root: cpupower frequency-set -g performance",
        )


def topology(host: HostContext) -> Iterator[Finding]:
    if (
        host.facts.system.is_linux
        and host.facts.cpu.online
        and not host.facts.cpu.siblings
        and host.facts.has_finished("kernel")
    ):
        yield Finding(
            "cpu.topology_hidden",
            "info",
            "Which CPUs share a core can't be read: each counts as a core, so there may be twice too many threads",
            "mount /sys/devices/system/cpu in the container, or set --omp and --ppn yourself",
        )


def numa(host: HostContext) -> Iterator[Finding]:
    with_cpus = [node for node in host.facts.cpu.numa if node.cpus]
    memories = [node.memory for node in with_cpus if node.memory is not None]
    if len(memories) < 2 or len(memories) != len(with_cpus):
        return
    without = [node.number for node in with_cpus if not node.memory]
    if without:
        numbers = ", ".join(str(number) for number in without)
        yield Finding(
            "numa.no_memory",
            "warn",
            f"NUMA node {numbers} has cores and no memory: a rank there fetches every byte from another node, slowly",
            "install memory modules in all sockets, or start fewer ranks per host: --ppn",
        )
    elif min(memories) < max(memories) / 2:
        yield Finding(
            "numa.uneven",
            "info",
            "One NUMA node has less than half the memory of another: its rank runs out first, and is slower if "
            "modules are missing",
            "distribute the memory modules evenly over all sockets",
        )


RULES: Final[tuple[HostRule, ...]] = (
    arch, instructions, hidden, allowed, quota, numa, topology, smt, governor, one_core,
)  # fmt: skip
