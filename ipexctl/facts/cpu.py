"""A host's processors, the cores this account may use, and their tier. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal

from ipexctl.facts.cpulist import CpuList

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Tier = Literal["amx", "avx512_bf16", "avx512", "avx2", "unsupported"]
TIERS: Final[tuple[Tier, ...]] = ("unsupported", "avx2", "avx512", "avx512_bf16", "amx")
"""From the weakest to the strongest."""

X86: Final = ("x86_64", "amd64")
_AMX_FP16_MODELS: Final = (173, 174)
"""Granite Rapids. The kernel has no flag for AMX-FP16 in /proc/cpuinfo, so the model number decides."""


@dataclass(frozen=True, slots=True)
class Isa:
    """The instruction sets that decide the speed of training."""

    avx2: bool = False
    avx512f: bool = False
    avx512_vnni: bool = False
    avx512_bf16: bool = False
    avx512_fp16: bool = False
    amx_tile: bool = False
    amx_int8: bool = False
    amx_bf16: bool = False
    amx_fp16: bool = False


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node: CPUs and their memory; a node with memory only has no CPUs."""

    number: int
    cpus: CpuList = field(default_factory=CpuList)
    memory: int | None = None
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """All processors of a host. Only online CPUs are counted."""

    arch: str | None = None
    vendor: str | None = None
    model_name: str | None = None
    family: int | None = None
    model: int | None = None
    stepping: int | None = None
    sockets: int | None = None
    cores: int | None = None
    """Physical cores of all sockets."""
    threads: int | None = None
    flags: frozenset[str] = frozenset()
    """Empty if unknown: then `isa` is None."""
    online: CpuList | None = None
    siblings: tuple[CpuList, ...] = ()
    """The threads of each core, ordered by their first thread."""
    packages: tuple[CpuList, ...] = ()
    """The threads of each socket."""
    numa: tuple[NumaNode, ...] = ()
    governor: str | None = None
    smt: bool | None = None
    affinity: CpuList | None = None
    """The CPUs this account's processes may run on: the affinity mask combined with the cpuset."""
    quota: float | None = None
    """The CPU time limit of the cgroup, in CPUs; None: no limit."""

    @property
    def isa(self) -> Isa | None:
        return isa_of(self.flags, self.family, self.model) if self.flags else None

    @property
    def tier(self) -> Tier | None:
        """None if the probe has no flags."""
        return tier_of(self.arch, self.flags)

    @property
    def numa_nodes(self) -> int | None:
        """The number of nodes with CPUs."""
        return sum(1 for node in self.numa if node.cpus) or None

    @property
    def allowed_cpus(self) -> CpuList | None:
        """The logical CPUs this account may use."""
        if self.affinity is None:
            return self.online
        return self.affinity & self.online if self.online else self.affinity

    @property
    def allowed_cores(self) -> tuple[CpuList, ...]:
        """The usable threads of each usable core, without regard to the quota."""
        usable = self.allowed_cpus
        if usable is None:
            return ()
        if not self.siblings:
            return tuple(CpuList((number,)) for number in usable)
        if usable == self.online:
            return self.siblings
        return tuple(part for core in self.siblings if (part := core & usable))

    @property
    def allowed(self) -> int | None:
        """The number of cores this account may use, from affinity, cpuset and quota, rounded up."""
        cores: int | None = len(self.allowed_cores) or self.cores
        if cores is None or self.quota is None:
            return cores
        return min(cores, max(1, math.ceil(self.quota)))


def isa_of(flags: Collection[str], family: int | None, model: int | None) -> Isa:
    by_name = {item.name: item.name in flags for item in fields(Isa)}
    inferred = family == 6 and model in _AMX_FP16_MODELS and by_name["amx_tile"]
    return Isa(**{**by_name, "amx_fp16": by_name["amx_fp16"] or inferred})


_AVX2: Final = frozenset({"avx2", "fma"})
_AVX512: Final = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
"""Required by the AVX-512 kernels of PyTorch and oneDNN: a Xeon Phi only has avx512f."""
_REQUIRED_FLAGS: Final[Mapping[Tier, frozenset[str]]] = {
    "amx": _AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16"},
    "avx512_bf16": _AVX512 | {"avx512_bf16"},
    "avx512": _AVX512,
    "avx2": _AVX2,
}


def tier_of(arch: str | None, flags: Collection[str]) -> Tier | None:
    """The strongest tier with all its instruction sets present; stacks run on x86-64 only."""
    if arch is not None and arch not in X86:
        return "unsupported"
    if not flags:
        return None
    available = frozenset(flags)
    return next((tier for tier, needed in _REQUIRED_FLAGS.items() if needed <= available), "unsupported")


def cpu_json(cpu: Cpu) -> dict[str, Any]:
    """The documented fields, and the fields that explain `allowed`."""
    isa = cpu.isa
    return {
        "arch": cpu.arch,
        "vendor": cpu.vendor,
        "model_name": cpu.model_name,
        "family": cpu.family,
        "model": cpu.model,
        "stepping": cpu.stepping,
        "sockets": cpu.sockets,
        "cores": cpu.cores,
        "threads": cpu.threads,
        "allowed": cpu.allowed,
        "allowed_cpus": None if cpu.allowed_cpus is None else str(cpu.allowed_cpus),
        "quota": cpu.quota,
        "numa_nodes": cpu.numa_nodes,
        "numa": [{"node": node.number, "cpus": str(node.cpus), "memory": node.memory} for node in cpu.numa],
        "smt": cpu.smt,
        "governor": cpu.governor,
        "isa": {item.name: None if isa is None else getattr(isa, item.name) for item in fields(Isa)},
        "tier": cpu.tier,
    }
