"""Counts the physical cores that ranks may use, and assigns them to ranks and their oneCCL workers. Pure.

A core counts once, however many threads it has. E-cores are left out, because all ranks would wait for a rank on one,
and a cgroup's quota limits the count. All ranks get the same number of cores, because the slowest sets the pace.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Final, Literal

from ipexctl.facts.cpu import Cpu, CpuList
from ipexctl.node.common.plan import Backend
from ipexctl.spec import Bind
from ipexctl.text import counted

Dtype = Literal["bfloat16", "float32"]

_HYBRID_MODELS: Final = frozenset({151, 154, 170, 172, 183, 186, 189, 191, 197, 198, 204})
"""Models of Intel's family 6 with two kinds of cores: Alder, Raptor, Meteor, Arrow, Lunar and Panther Lake."""


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core, named by the thread that a rank is bound to."""

    cpu: int
    node: int | None = None
    socket: int | None = None


@dataclass(frozen=True, slots=True)
class Cores:
    cores: tuple[Core, ...] = ()
    count: int = 1
    """Cores that can be busy at the same time; under a quota fewer than `cores`."""
    limited: bool = False
    """True under a quota. Other containers may then use the same cores."""
    left_out: int = 0

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({core.node for core in self.cores if core.node is not None}))


@lru_cache(maxsize=64)  # hosts of a cluster have equal processors
def cores_of(cpu: Cpu) -> Cores:
    """The cores that this account may use, without E-cores, sorted by socket, NUMA node and number."""
    kept, left_out = _without_e_cores(cpu)
    if not kept:
        return Cores(count=cpu.allowed or 1)
    node = {number: numa.number for numa in cpu.numa for number in numa.cpus}
    socket = {number: at for at, package in enumerate(cpu.packages) for number in package}
    cores = [Core(core.cpus[0], node.get(core.cpus[0]), socket.get(core.cpus[0])) for core in kept]
    cores.sort(key=lambda core: (_or_last(core.socket), _or_last(core.node), core.cpu))
    granted = len(cores) if cpu.quota is None else min(len(cores), max(1, math.ceil(cpu.quota)))
    return Cores(tuple(cores), granted, granted < len(cores), left_out)


@lru_cache(maxsize=64)
def numa_nodes(cpu: Cpu) -> int:
    """NUMA nodes with a CPU this account may use; 1 if unknown."""
    allowed = cpu.allowed_cpus
    if allowed is None:
        return cpu.numa_nodes or 1
    return sum(1 for node in cpu.numa if node.cpus & allowed) or 1


def _without_e_cores(cpu: Cpu) -> tuple[tuple[CpuList, ...], int]:
    """Leave out E-cores: on a hybrid CPU with hyper-threading, the cores that have a single thread."""
    allowed = cpu.allowed_cores
    if cpu.vendor != "GenuineIntel" or cpu.family != 6 or cpu.model not in _HYBRID_MODELS:
        return allowed, 0
    threaded = {number for core in cpu.siblings if len(core) > 1 for number in core}
    fast = tuple(core for core in allowed if core.cpus[0] in threaded)
    return (fast, len(allowed) - len(fast)) if fast else (allowed, 0)


def _or_last(number: int | None) -> int:
    return 1 << 30 if number is None else number


def cpus(cores: Iterable[Core]) -> tuple[int, ...]:
    return tuple(core.cpu for core in cores)


@dataclass(frozen=True, slots=True)
class Layout:
    ppn: int
    omp_num_threads: int
    ccl_worker_count: int
    reason: str
    cores_per_rank: int = 1


def threads_of_rank(cores: int, ranks: int, workers: int) -> tuple[int, str]:
    """Threads per rank, and the formula. oneCCL's workers get cores only where compute keeps one."""
    share = max(1, cores // ranks)
    reserved = workers if share > workers else 0
    formula = f"{counted(cores, 'core')} / {counted(ranks, 'rank')}"
    return share - reserved, formula + (f" - {reserved} for oneCCL" if reserved else "")


def default_ranks(cpu: Cpu) -> int:
    return max(1, min(numa_nodes(cpu), cores_of(cpu).count))


def common_layout(cpus: Sequence[Cpu], workers: int) -> Layout:
    """The layout that fits every host: ranks by the fewest NUMA nodes of a host, threads by the fewest cores."""
    ranks, cores = min(map(default_ranks, cpus)), min(cores_of(cpu).count for cpu in cpus)
    threads, reason = threads_of_rank(cores, ranks, workers)
    return Layout(ranks, threads, workers, reason, max(1, cores // ranks))


def recommended_layout(cpus: Sequence[Cpu], *, has_ccl: bool) -> tuple[Layout, Backend, str]:
    found = common_layout(cpus, 0)
    backend, reason = automatic_backend(has_ccl, len(cpus), found.ppn * len(cpus), found.cores_per_rank)
    return (common_layout(cpus, 1) if backend == "ccl" else found), backend, reason


def automatic_backend(has_ccl: bool, hosts: int, world_size: int, cores_per_rank: int) -> tuple[Backend, str]:
    """The backend of `--backend auto`, and its reason. `cores_per_rank`: 0 if there are more ranks than cores.

    Measured on hosts that shared two cores, with CCL_WORKER_OFFLOAD=0 for single cores: 64 MB over ccl and gloo in 128
    and 191 ms (2 ranks, 1 host), 333 and 320 ms (2 ranks, 2 hosts), 709 and 184 ms (3 ranks, more than cores); a DDP
    step with 25 MB in 176 and 335 ms (1 host), 342 and 268 ms (2 hosts).
    """
    if not has_ccl:
        return "gloo", "the environment has no oneCCL bindings"
    if world_size == 1:
        return "gloo", "a single rank has nothing to communicate"
    if cores_per_rank < 1:
        return "gloo", (
            "there are more ranks than cores, and oneCCL waits by spinning: an all-reduce of 64 MB took 709 ms over "
            "ccl and 184 ms over gloo there; --backend ccl takes it nevertheless"
        )
    if cores_per_rank == 1 and hosts > 1:
        return "gloo", (
            "ranks on several hosts have a single core each, and oneCCL waits by spinning on it: a training step took "
            "342 ms over ccl and 268 ms over gloo there; --backend ccl takes it nevertheless"
        )
    return "ccl", "the environment has oneCCL bindings"


def dtype(tiers: Iterable[str]) -> Dtype:
    """bfloat16 if every host computes it in hardware: elsewhere it is slower than float32."""
    return "bfloat16" if all(tier in ("amx", "avx512_bf16") for tier in tiers) else "float32"


@dataclass(frozen=True, slots=True)
class RankSlot:
    cores: tuple[int, ...] = ()
    workers: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Binding:
    slots: tuple[RankSlot, ...]
    threads: int
    formula: str
    workers: int
    """oneCCL workers per rank; 0 if a rank has no core to spare."""
    alone: bool
    """True if no two ranks share a core, so each thread may be bound to one."""
    crowded: bool = False


def bind(cores: Cores, ranks: int, workers: int, mode: Bind, *, omp: int = 1, bind_workers: bool = True) -> Binding:
    """Give each rank a block of cores within one NUMA node, else within one socket, else in numeric order. `omp`: how
    many cores of a rank its workers must leave free."""
    reserved = workers if cores.count // ranks - workers >= omp else 0
    threads, formula = threads_of_rank(cores.count, ranks, reserved)
    crowded = ranks > cores.count
    if mode == "none" or not cores.cores:
        return Binding((RankSlot(),) * ranks, threads, formula, reserved, alone=False, crowded=crowded)
    if ranks > len(cores.cores):
        # Bound, two of three ranks would share one of two cores: the kernel shares them more evenly.
        all_cores = RankSlot(cpus(cores.cores))
        return Binding((all_cores,) * ranks, threads, formula, 0, alone=False, crowded=True)
    blocks = _blocks(cores.cores, ranks)
    # Under a quota other containers may choose the same first cores, so workers are not bound.
    split = reserved and bind_workers and not cores.limited
    workers_of = [block[-reserved:] if split else () for block in blocks]
    taken = {core for worker_cores in workers_of for core in worker_cores}
    slots = []
    for block, worker_cores in zip(blocks, workers_of, strict=True):
        bound = [core for core in _bound_cores(block, cores.cores, mode) if core not in taken]
        slots.append(RankSlot(cpus(bound), cpus(worker_cores), _memory(bound, cores)))
    used = [number for slot in slots for number in slot.cores]
    alone = not cores.limited and len(used) == len(set(used))
    return Binding(tuple(slots), threads, formula, reserved, alone, crowded)


def _blocks(cores: Sequence[Core], ranks: int) -> list[tuple[Core, ...]]:
    size = len(cores) // ranks
    for kind in ("node", "socket"):
        groups = [tuple(group) for _, group in groupby(cores, key=lambda core: (core.socket, getattr(core, kind)))]
        room = [len(group) // size for group in groups]
        if sum(room) >= ranks:
            counts = level(ranks, room)
            return [
                group[at * size : (at + 1) * size]
                for group, count in zip(groups, counts, strict=True)
                for at in range(count)
            ]
    return [tuple(cores[at * size : (at + 1) * size]) for at in range(ranks)]


def level(total: int, room: Sequence[int]) -> list[int]:
    counts = [0] * len(room)
    while total:
        with_room = [at for at, limit in enumerate(room) if counts[at] < limit]
        if not with_room:
            break
        # Whole rounds in one step, because a hostfile may grant thousands.
        rounds = max(1, min(total // len(with_room), min(room[at] - counts[at] for at in with_room)))
        for at in with_room[: total if total < len(with_room) else None]:
            counts[at] += rounds
            total -= rounds
    return counts


def _bound_cores(block: Sequence[Core], cores: Sequence[Core], mode: Bind) -> Sequence[Core]:
    if mode == "numa":
        nodes = {(core.socket, core.node) for core in block}
        return [core for core in cores if (core.socket, core.node) in nodes]
    if mode == "socket":
        sockets = {core.socket for core in block}
        return [core for core in cores if core.socket in sockets]
    return block


def _memory(bound: Sequence[Core], cores: Cores) -> tuple[int, ...]:
    """The cores' NUMA nodes; empty if these are all nodes."""
    nodes = tuple(sorted({core.node for core in bound if core.node is not None}))
    return () if nodes == cores.nodes and len(nodes) > 1 else nodes
