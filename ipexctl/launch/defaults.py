"""How many ranks a host gets and how many threads each: the arithmetic, the same for doctor and run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ipexctl.launch.topology import cores_of, numa_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipexctl.facts.cpu import Cpu

Dtype = Literal["bfloat16", "float32"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks a host and threads a rank, with the formula that led there."""

    ppn: int
    omp_num_threads: int
    ccl_worker_count: int
    why: str


def threads_of_rank(cores: int, ranks: int, workers: int) -> tuple[int, str]:
    """Threads a rank, and how they were counted: oneCCL's workers get cores only where compute keeps one."""
    each = max(1, cores // ranks)
    apart = workers if each > workers else 0
    formula = f"{cores} {'core' if cores == 1 else 'cores'} / {ranks} {'rank' if ranks == 1 else 'ranks'}"
    return each - apart, formula + (f" - {apart} for oneCCL" if apart else "")


def default_ranks(cpu: Cpu) -> int:
    """One a NUMA node, and never more than cores."""
    return max(1, min(numa_nodes(cpu), cores_of(cpu).count))


def layout(cpu: Cpu, backend: str, ppn: int | None = None) -> Layout:
    """One rank a NUMA node, or as many as asked; oneCCL's worker gets a core where a rank has two or more."""
    ranks = ppn or default_ranks(cpu)
    workers = 1 if backend == "ccl" else 0
    threads, why = threads_of_rank(cores_of(cpu).count, ranks, workers)
    return Layout(ranks, threads, workers, why)


def common_layout(cpus: Sequence[Cpu], backend: str) -> Layout:
    """What every host can carry: as many ranks as the host with the fewest NUMA nodes, and then the fewest threads."""
    ppn = min(default_ranks(cpu) for cpu in cpus)
    return min((layout(cpu, backend, ppn) for cpu in cpus), key=lambda one: one.omp_num_threads)


def dtype(tiers: Iterable[str]) -> Dtype:
    """bfloat16 where every host computes it in hardware: elsewhere it is slower than float32."""
    return "bfloat16" if all(tier in ("amx", "avx512_bf16") for tier in tiers) else "float32"
