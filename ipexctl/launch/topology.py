"""Counts the physical cores that ranks may use, and assigns them to ranks and their oneCCL workers. Pure.

A core counts once, however many threads it has. E-cores are left out, because all ranks would wait for a rank on one,
and a cgroup's quota limits the count. All ranks get the same number of cores, because the slowest sets the pace.
By default there is one rank for each NUMA node with memory that holds at least half as many of these cores as the
largest: `rank_groups`. Everything else (what a rank's cores are, what is advised) follows from these groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from ipexctl.facts.cpu import Cpu, CpuList, NumaNode
from ipexctl.node.common.asked import Bind
from ipexctl.node.common.plan import Backend
from ipexctl.text import format_count

Dtype = Literal["bfloat16", "float32"]

_HYBRID_MODELS: Final = frozenset({151, 154, 170, 172, 181, 183, 186, 189, 191, 197, 198, 204})
"""Models of Intel's family 6 with two kinds of cores: Alder, Raptor, Meteor, Arrow, Lunar and Panther Lake. They count
only if the kernel does not list the performance cores, as before 5.13 and in VMs."""


class Area(NamedTuple):
    """NUMA nodes whose memory is the nearest to the same cores. `number`: the first node with these cores."""

    number: int
    cpus: CpuList
    memory: tuple[int, ...]
    hbm: tuple[int, ...] = ()
    hbm_size: int = 0


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core, named by the thread that a rank is bound to."""

    cpu: int
    node: int | None = None
    """Number of the core's area."""
    socket: int | None = None


@dataclass(frozen=True, slots=True)
class Cores:
    cores: tuple[Core, ...] = ()
    count: int = 1
    """Cores that can be busy at the same time; under a quota fewer than `cores`."""
    limited: bool = False
    """True under a quota. Other containers may then use the same cores."""
    left_out: int = 0
    areas: tuple[Area, ...] = ()

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({core.node for core in self.cores if core.node is not None}))

    def areas_of(self, cores: Iterable[Core]) -> list[Area]:
        numbers = {core.node for core in cores}
        return [area for area in self.areas if area.number in numbers]


@lru_cache(maxsize=64)  # hosts of a cluster have equal processors
def cores_of(cpu: Cpu) -> Cores:
    """The cores that this account may use, without E-cores, sorted by socket, NUMA node and number."""
    kept, left_out = _without_e_cores(cpu)
    if not kept:
        return Cores(count=cpu.allowed or 1)
    areas = _areas(cpu)
    node = {number: area.number for area in areas for number in area.cpus}
    socket = {number: at for at, package in enumerate(cpu.packages) for number in package}
    cores = [Core(core.cpus[0], node.get(core.cpus[0]), socket.get(core.cpus[0])) for core in kept]
    cores.sort(key=lambda core: (_or_last(core.socket), _or_last(core.node), core.cpu))
    granted = len(cores) if cpu.quota is None else min(len(cores), max(1, math.ceil(cpu.quota)))
    return Cores(tuple(cores), granted, granted < len(cores), left_out, areas)


def _areas(cpu: Cpu) -> tuple[Area, ...]:
    """Nodes that list the same CPUs are one area, and CPUs of a node without memory go to the nearest that has some."""
    groups: list[list[NumaNode]] = []
    group_of: dict[int, list[NumaNode]] = {}
    for node in cpu.usable_numa:
        if node.cpus:
            group = next((group_of[number] for number in node.cpus if number in group_of), [])
            groups += [] if group else [group]
            group.append(node)
            group_of.update(dict.fromkeys(node.cpus, group))
    homes = [group for group in groups if any(node.memory != 0 for node in group)] or groups
    cpus = {group[0].number: [number for node in group for number in node.cpus] for group in homes}
    for group in groups:
        if group not in homes:
            cpus[_nearest(cpu, group[0], homes)] += [number for node in group for number in node.cpus]
    hbm: dict[int, list[NumaNode]] = {}
    for at, node in enumerate(cpu.hbm):
        # Kernels number the HBM nodes in the order of the nodes that they belong to.
        paired = homes[at * len(homes) // len(cpu.hbm)][0].number if homes else 0
        hbm.setdefault(_nearest(cpu, node, homes) if node.distances else paired, []).append(node)
    return tuple(
        Area(
            group[0].number,
            CpuList.of(cpus[group[0].number]),
            tuple(node.number for node in group if node.memory != 0 or homes is groups),
            tuple(node.number for node in hbm.get(group[0].number, ())),
            sum(node.memory or 0 for node in hbm.get(group[0].number, ())),
        )
        for group in homes
    )


def _nearest(cpu: Cpu, node: NumaNode, homes: Sequence[Sequence[NumaNode]]) -> int:
    """First node of the nearest group: by distance, else on the same socket, else by number."""
    distance_to = dict(zip((each.number for each in cpu.numa), node.distances, strict=False))
    package = next((package for package in cpu.packages if package & node.cpus), CpuList())

    def distance(group: Sequence[NumaNode]) -> tuple[int, bool, int]:
        first = group[0]
        return distance_to.get(first.number, 0), not first.cpus & package, abs(first.number - node.number)

    return min(homes, key=distance)[0].number


@lru_cache(maxsize=64)
def numa_nodes(cpu: Cpu) -> int:
    """NUMA nodes with memory and a CPU this account may use; 1 if unknown."""
    allowed = cpu.allowed_cpus
    return sum(1 for area in _areas(cpu) if allowed is None or area.cpus & allowed) or 1


def _without_e_cores(cpu: Cpu) -> tuple[tuple[CpuList, ...], int]:
    """Leave out E-cores: if the kernel does not list the others, the cores of a hybrid CPU that have one thread."""
    allowed = cpu.allowed_cores
    if cpu.p_cores is not None:
        fast = tuple(core for core in allowed if core.cpus[0] in cpu.p_cores)
        return (fast, len(allowed) - len(fast)) if fast else (allowed, 0)
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


def threads_of_rank(share: int, cores: Cores, ranks: int, workers: int) -> tuple[int, str]:
    """Threads per rank, and the formula. oneCCL's workers get cores only where compute keeps one."""
    reserved = workers if share > workers else 0
    idle = share < cores.count // ranks
    formula = (
        f"{f'{share * ranks} of ' if idle else ''}{format_count(cores.count, 'core')} / {format_count(ranks, 'rank')}"
    )
    return max(1, share) - reserved, formula + (f" - {reserved} for oneCCL" if reserved else "")


@lru_cache(maxsize=64)
def default_ranks(cpu: Cpu) -> int:
    """One rank for each group of cores; under a quota, each rank has at least two cores' time."""
    cores = cores_of(cpu)
    groups = len(rank_groups(cores.cores))
    return max(1, min(groups, cores.count // 2) if cores.limited else groups)


def common_layout(cpus: Sequence[Cpu], workers: int) -> Layout:
    """The layout that fits every host: ranks by the host with the fewest, threads by the one with the fewest cores."""
    ranks = min(map(default_ranks, cpus))
    share, smallest = min(((cores_per_rank(cpu, ranks), cores_of(cpu)) for cpu in cpus), key=lambda each: each[0])
    threads, reason = threads_of_rank(share, smallest, ranks, workers)
    return Layout(ranks, threads, workers, reason, max(1, share))


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


def tasks_of(ranks: int, threads: int) -> int:
    """Processes and threads of a host's ranks, as pids.max counts them. With torch 2.13 over gloo, a rank has 4 threads
    beside those of OpenMP, and a wrapper; up to 8 programs start and watch the ranks."""
    return ranks * (threads + 5) + 8


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
    share: int
    """Cores per rank, including the cores of its oneCCL workers; 0 if there are more ranks than cores."""
    alone: bool
    """True if no two ranks share a core, so each thread may be bound to one."""
    crowded: bool = False
    hbm: int = 0
    """Bytes of high-bandwidth memory per rank; 0 without any."""


def bind(
    cores: Cores, ranks: int, workers: int, mode: Bind, *, omp: int = 1, bind_workers: bool = True, need: int = 0
) -> Binding:
    """Give each rank a block of cores within one NUMA node, else within one socket, else in numeric order. `omp`: how
    many cores of a rank its workers must leave free. `need`: bytes that a rank took in an earlier run; 0 if unknown."""
    crowded = ranks > cores.count
    blocks = _blocks(cores.cores, ranks) if mode != "none" and ranks <= len(cores.cores) else []
    share = min([cores.count // ranks, *map(len, blocks)])
    if cores.limited and share:
        blocks = [_on_one_socket(block, share) for block in blocks]
        blocks = [block[: min(map(len, blocks))] for block in blocks]
    reserved = workers if share - workers >= omp else 0
    threads, formula = threads_of_rank(share, cores, ranks, reserved)
    if mode == "none" or not cores.cores:
        return Binding((RankSlot(),) * ranks, threads, formula, reserved, share, alone=False, crowded=crowded)
    if not blocks:
        # Bound, two of three ranks would share one of two cores: the kernel shares them more evenly.
        all_cores = RankSlot(cpus(cores.cores))
        return Binding((all_cores,) * ranks, threads, formula, 0, share, alone=False, crowded=True)
    # Under a quota other containers may choose the same first cores, so workers are not bound.
    split = reserved and bind_workers and not cores.limited
    workers_of = [block[-reserved:] if split else () for block in blocks]
    taken = {core for worker_cores in workers_of for core in worker_cores}
    bound = [[core for core in _bound_cores(block, cores.cores, mode) if core not in taken] for block in blocks]
    hbm = _hbm_share([cores.areas_of(each) for each in bound])
    memory = [_memory(each, cores, has_hbm=0 < hbm >= need) for each in bound]
    slots = tuple(map(RankSlot, map(cpus, bound), map(cpus, workers_of), memory))
    used = [number for slot in slots for number in slot.cores]
    alone = not cores.limited and len(used) == len(set(used))
    return Binding(slots, threads, formula, reserved, share, alone, crowded, hbm)


def rank_groups(cores: Sequence[Core]) -> list[tuple[Core, ...]]:
    """One group of cores for each NUMA node that holds at least half as many as the largest. The cores of other nodes
    go to the smallest group of their socket, behind its own cores; if their socket has none, they stay idle."""
    by_node: dict[int | None, list[Core]] = {}
    for core in cores:
        by_node.setdefault(core.node, []).append(core)
    most = max(map(len, by_node.values()), default=0)
    groups = {node: list(own) for node, own in by_node.items() if 2 * len(own) >= most}
    sockets = {node: {core.socket for core in own} for node, own in by_node.items()}
    for node in (node for node in by_node if node not in groups):
        near = [other for other in groups if sockets[other] & sockets[node]]
        if near:
            groups[min(near, key=lambda other: (len(groups[other]), _or_last(other)))] += by_node[node]
    return [tuple(group) for group in groups.values()]


def _blocks(cores: Sequence[Core], ranks: int) -> list[tuple[Core, ...]]:
    groups = rank_groups(cores)
    if ranks == len(groups):
        return [group[: min(map(len, groups))] for group in groups]
    grouped = {core for group in groups for core in group}
    kept = [core for core in cores if core in grouped]
    for pool, keys in ((cores, ("socket", "node")), (cores, ("node",)), (kept, ("node",)), (cores, ("socket",))):
        size = len(pool) // ranks
        parts: dict[tuple[int | None, ...], list[Core]] = {}
        for core in pool:
            parts.setdefault(tuple(getattr(core, key) for key in keys), []).append(core)
        room = [len(part) // size if size else 0 for part in parts.values()]
        if sum(room) >= ranks:
            counts = level(ranks, room)
            return [
                tuple(part[at * size : (at + 1) * size])
                for part, count in zip(parts.values(), counts, strict=True)
                for at in range(count)
            ]
    size = len(cores) // ranks
    return [tuple(cores[at * size : (at + 1) * size]) for at in range(ranks)]


def _on_one_socket(block: tuple[Core, ...], share: int) -> tuple[Core, ...]:
    """Under a quota, a rank has more cores than their time: those of one socket, if it has enough."""
    parts: dict[int | None, list[Core]] = {}
    for core in block:
        parts.setdefault(core.socket, []).append(core)
    largest = max(parts.values(), key=len, default=[])
    return tuple(largest) if len(largest) >= share else block


@lru_cache(maxsize=256)
def cores_per_rank(cpu: Cpu, ranks: int) -> int:
    """Cores of each rank; 0 if there are more ranks than cores."""
    return bind(cores_of(cpu), ranks, 0, "auto").share


def split_ranks(cores: Cores, binding: Binding) -> list[int]:
    """Local ranks with cores of several NUMA nodes, if these are on two sockets or another rank has cores there, too.
    None under a quota, where the kernel chooses among all cores."""
    if binding.crowded or cores.limited:
        return []
    places = {core.cpu: core for core in cores.cores}
    blocks = [[places[cpu] for cpu in (*slot.cores, *slot.workers) if cpu in places] for slot in binding.slots]
    nodes = [{core.node for core in block} for block in blocks]
    ranks_of = Counter(node for each in nodes for node in each)
    return [
        at
        for at, block in enumerate(blocks)
        if len(nodes[at]) > 1
        and (len({core.socket for core in block}) > 1 or any(ranks_of[node] > 1 for node in nodes[at]))
    ]


def level(total: int, room: Sequence[int]) -> list[int]:
    counts = [0] * len(room)
    while total:
        with_room = [at for at, limit in enumerate(room) if counts[at] < limit]
        if not with_room:
            break
        # Whole rounds in one step, because a hostfile may grant thousands.
        rounds = max(1, min(total // len(with_room), min(room[at] - counts[at] for at in with_room)))
        for at in with_room[:total]:
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


def _hbm_share(areas_of_ranks: Sequence[Sequence[Area]]) -> int:
    """Bytes of high-bandwidth memory for the rank that gets the fewest; 0 without any."""
    ranks_of = Counter(area.number for areas in areas_of_ranks for area in areas)
    return min((sum(area.hbm_size // ranks_of[area.number] for area in areas) for areas in areas_of_ranks), default=0)


def _memory(bound: Sequence[Core], cores: Cores, *, has_hbm: bool) -> tuple[int, ...]:
    """The nodes with the memory of these cores, the fast one if it is enough; empty if these are all nodes."""
    areas = cores.areas_of(bound)
    hbm = tuple(sorted(number for area in areas for number in area.hbm)) if has_hbm else ()
    nodes = tuple(sorted(number for area in areas for number in area.memory))
    everything = sum(len(area.memory) for area in cores.areas_of(cores.cores))
    return hbm or (() if len(nodes) == everything > 1 else nodes)
