"""How many ranks a host gets and how many threads each: the arithmetic, the same for doctor and run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipexctl.facts.cpu import Cpu

Backend = Literal["ccl", "gloo"]
Dtype = Literal["bfloat16", "float32"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks a host and threads a rank, with the formula that led there."""

    ppn: int
    omp_num_threads: int
    ccl_worker_count: int
    why: str


def numa_nodes(cpu: Cpu) -> int:
    """NUMA nodes with a CPU this account may use; one where nothing is known."""
    allowed = cpu.allowed_cpus
    if allowed is None:
        return cpu.numa_nodes or 1
    return sum(1 for node in cpu.numa if node.cpus & allowed) or 1


def layout(cpu: Cpu, backend: Backend, ppn: int | None = None) -> Layout:
    """One rank a NUMA node, or as many as asked; oneCCL's worker gets a core where a rank has two or more."""
    cores = cpu.allowed or 1
    ranks = ppn or max(1, min(numa_nodes(cpu), cores))
    each = max(1, cores // ranks)
    workers = 1 if backend == "ccl" else 0
    threads = each - workers if each > 1 else 1
    taken = f" - {workers} for oneCCL" if workers and each > 1 else ""
    return Layout(ranks, threads, workers, f"{cores} cores / {ranks} {'rank' if ranks == 1 else 'ranks'}{taken}")


def common_layout(cpus: Sequence[Cpu], backend: Backend) -> Layout:
    """What every host can carry: as many ranks as the host with the fewest NUMA nodes, and then the fewest threads."""
    ppn = min(layout(cpu, backend).ppn for cpu in cpus)
    return min((layout(cpu, backend, ppn) for cpu in cpus), key=lambda one: one.omp_num_threads)


def dtype(tiers: Iterable[str]) -> Dtype:
    """bfloat16 where every host computes it in hardware: elsewhere it is slower than float32."""
    return "bfloat16" if all(tier in ("amx", "avx512_bf16") for tier in tiers) else "float32"
