"""Count the physical cores that ranks may use, and assign them to ranks and their oneCCL workers. Nothing here reads a
file or contacts a host.

A core counts once, however many threads it has. E-cores are left out, because all ranks would wait for a rank on one,
and a cgroup's quota limits the count. All ranks get the same number of cores, because the slowest sets the pace.

By default there is one rank for each NUMA node that has memory and at least half as many of these cores as the largest:
`rank_groups`. Everything else (which cores a rank gets, what is advised) follows from these groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from ipexctl.facts.cpu import Cpu, CpuList, NumaNode
from ipexctl.node.common.plan import Backend
from ipexctl.node.common.run_options import Bind
from ipexctl.text import format_count

Dtype = Literal["bfloat16", "float32"]

_HYBRID_MODELS: Final = frozenset({151, 154, 170, 172, 181, 183, 186, 189, 191, 197, 198, 204})
"""Models of Intel's family 6 with two kinds of cores: Alder, Raptor, Meteor, Arrow, Lunar and Panther Lake.

They count only if the kernel does not list the performance cores, as before 5.13 and in VMs.
"""


class Area(NamedTuple):
    """NUMA nodes whose memory is the nearest to the same cores."""

    number: int
    """Number of the first NUMA node with these cores."""
    cpus: CpuList
    memory: tuple[int, ...]
    """Numbers of the NUMA nodes with memory; of all, if no node of the host is known to have memory."""
    hbm: tuple[int, ...] = ()
    """Numbers of the NUMA nodes with high-bandwidth memory."""
    hbm_size: int = 0
    """Bytes of high-bandwidth memory."""


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core, named by the thread that a rank is bound to."""

    cpu: int
    """Number of that thread."""
    node: int | None = None
    """Number of the core's area; None if the core is in none."""
    socket: int | None = None
    """Position of the core's socket; None if unknown."""


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of a host that ranks may use."""

    cores: tuple[Core, ...] = ()
    """Empty if the cores of the host are not known."""
    count: int = 1
    """Cores that can be busy at the same time: fewer than `cores` under a quota."""
    limited: bool = False
    """True if a quota grants fewer cores. Other containers may then use the same cores."""
    left_out: int = 0
    """Number of E-cores that are not used."""
    areas: tuple[Area, ...] = ()

    @property
    def nodes(self) -> tuple[int, ...]:
        """Numbers of the areas that have cores."""
        return tuple(sorted({core.node for core in self.cores if core.node is not None}))

    def areas_of(self, cores: Iterable[Core]) -> list[Area]:
        """Return the areas of these cores."""
        numbers = {core.node for core in cores}
        return [area for area in self.areas if area.number in numbers]


@lru_cache(maxsize=64)  # hosts of a cluster have equal processors
def cores_of(cpu: Cpu) -> Cores:
    """Return the cores that this account may use, without E-cores, sorted by socket, NUMA node and number."""
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
    """Group the NUMA nodes: those with the same CPUs are one area, and CPUs without memory go to the nearest node that
    has some.
    """
    groups: list[list[NumaNode]] = []
    group_of: dict[int, list[NumaNode]] = {}
    for node in cpu.usable_numa:
        if node.cpus:
            group = next((group_of[number] for number in node.cpus if number in group_of), [])
            groups += [] if group else [group]
            group.append(node)
            group_of.update(dict.fromkeys(node.cpus, group))
    with_memory = [group for group in groups if any(node.memory != 0 for node in group)] or groups
    cpus = {group[0].number: [number for node in group for number in node.cpus] for group in with_memory}
    for group in groups:
        if group not in with_memory:
            cpus[_nearest(cpu, group[0], with_memory)].extend(number for node in group for number in node.cpus)
    hbm: dict[int, list[NumaNode]] = {}
    for at, node in enumerate(cpu.hbm):
        # Kernels number the HBM nodes in the order of the nodes that they belong to.
        by_order = with_memory[at * len(with_memory) // len(cpu.hbm)][0].number if with_memory else 0
        hbm.setdefault(_nearest(cpu, node, with_memory) if node.distances else by_order, []).append(node)
    areas = []
    for group in with_memory:
        number = group[0].number
        memory_nodes = tuple(node.number for node in group if node.memory != 0 or with_memory is groups)
        hbm_nodes = tuple(node.number for node in hbm.get(number, ()))
        hbm_size = sum(node.memory or 0 for node in hbm.get(number, ()))
        areas.append(Area(number, CpuList.of(cpus[number]), memory_nodes, hbm_nodes, hbm_size))
    return tuple(areas)


def _nearest(cpu: Cpu, node: NumaNode, groups: Sequence[Sequence[NumaNode]]) -> int:
    """Return the number of the nearest group's first node: by distance, else on the same socket, else by number."""
    distance_to = dict(zip((other.number for other in cpu.numa), node.distances, strict=False))
    package = next((package for package in cpu.packages if package & node.cpus), CpuList())

    def distance(group: Sequence[NumaNode]) -> tuple[int, bool, int]:
        """Return the sort key of a group: the smallest is the nearest."""
        first = group[0]
        return distance_to.get(first.number, 0), not first.cpus & package, abs(first.number - node.number)

    return min(groups, key=distance)[0].number


@lru_cache(maxsize=64)
def numa_nodes(cpu: Cpu) -> int:
    """Count the areas with memory and a CPU that this account may use; 1 if they are not known."""
    allowed = cpu.allowed_cpus
    return sum(1 for area in _areas(cpu) if allowed is None or area.cpus & allowed) or 1


def _without_e_cores(cpu: Cpu) -> tuple[tuple[CpuList, ...], int]:
    """Return the cores without E-cores, and how many were left out.

    If the kernel does not list the performance cores, the cores of a hybrid CPU that have one thread are E-cores.
    """
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
    """Return a sort key: None comes last."""
    return 1 << 30 if number is None else number


def cpus(cores: Iterable[Core]) -> tuple[int, ...]:
    """Return the numbers of the cores."""
    return tuple(core.cpu for core in cores)


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks and threads of a host, as `doctor` recommends them."""

    ppn: int
    """Ranks per host."""
    omp_num_threads: int
    ccl_worker_count: int
    """oneCCL workers per rank."""
    reason: str
    """How the number of threads was computed."""
    cores_per_rank: int = 1
    """Cores of a rank, at least 1."""


def threads_of_rank(share: int, cores: Cores, ranks: int, workers: int) -> tuple[int, str]:
    """Return the threads of a rank, and how they were computed. oneCCL's workers get cores only if compute keeps one.

    `share`: cores of a rank.
    """
    reserved = workers if share > workers else 0
    idle = share < cores.count // ranks
    formula = (
        f"{f'{share * ranks} of ' if idle else ''}{format_count(cores.count, 'core')} / {format_count(ranks, 'rank')}"
    )
    return max(1, share) - reserved, formula + (f" - {reserved} for oneCCL" if reserved else "")


@lru_cache(maxsize=64)
def default_ranks(cpu: Cpu) -> int:
    """Return the default number of ranks: one for each group of cores; under a quota, each has at least two cores'
    time.
    """
    cores = cores_of(cpu)
    groups = len(rank_groups(cores.cores))
    return max(1, min(groups, cores.count // 2) if cores.limited else groups)


def common_layout(cpus: Sequence[Cpu], workers: int) -> Layout:
    """Return the layout that fits every host: ranks of the host with the fewest, threads of the one with the fewest
    cores a rank.
    """
    ranks = min(map(default_ranks, cpus))
    share, smallest = min(((cores_per_rank(cpu, ranks), cores_of(cpu)) for cpu in cpus), key=lambda pair: pair[0])
    threads, reason = threads_of_rank(share, smallest, ranks, workers)
    return Layout(ranks, threads, workers, reason, max(1, share))


def recommended_layout(cpus: Sequence[Cpu], *, has_ccl: bool) -> tuple[Layout, Backend, str]:
    """Return the layout for hosts with these processors, the backend of `--backend auto`, and the reason for the
    backend.
    """
    layout = common_layout(cpus, 0)
    backend, reason = automatic_backend(has_ccl, len(cpus), layout.ppn * len(cpus), layout.cores_per_rank)
    return (common_layout(cpus, 1) if backend == "ccl" else layout), backend, reason


def automatic_backend(has_ccl: bool, hosts: int, world_size: int, cores_per_rank: int) -> tuple[Backend, str]:
    """Return the backend of `--backend auto`, and its reason. `cores_per_rank`: 0 if there are more ranks than cores.

    Measured on hosts that shared two cores, with CCL_WORKER_OFFLOAD=0 for single cores:

    - 64 MB over ccl and gloo in 128 and 191 ms (2 ranks, 1 host), 333 and 320 ms (2 ranks, 2 hosts), 709 and 184 ms (3
      ranks, more than cores);
    - a DDP step with 25 MB in 176 and 335 ms (1 host), 342 and 268 ms (2 hosts).
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
    """Return the number of processes and threads of a host's ranks, as pids.max counts them.

    With torch 2.13 over gloo, a rank has 4 threads beside those of OpenMP, and a wrapper. Up to 8 programs start and
    watch the ranks.
    """
    return ranks * (threads + 5) + 8


def dtype(tiers: Iterable[str]) -> Dtype:
    """Return bfloat16 if every host computes it in hardware, else float32: there bfloat16 is slower."""
    return "bfloat16" if all(tier in ("amx", "avx512_bf16") for tier in tiers) else "float32"


@dataclass(frozen=True, slots=True)
class RankSlot:
    """What one rank gets."""

    cores: tuple[int, ...] = ()
    """Numbers of the cores; empty if the rank is not bound."""
    workers: tuple[int, ...] = ()
    """Numbers of the cores of its oneCCL workers; empty if they are not bound."""
    memory: tuple[int, ...] = ()
    """Numbers of the NUMA nodes from which the rank should take memory; empty for all."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The cores of a host's ranks."""

    slots: tuple[RankSlot, ...]
    """One for each rank."""
    threads: int
    """OpenMP threads of a rank."""
    formula: str
    """How `threads` was computed."""
    workers: int
    """oneCCL workers per rank; 0 if a rank has no core to spare."""
    share: int
    """Cores per rank, including the cores of its oneCCL workers; 0 if there are more ranks than cores."""
    alone: bool
    """True if no two ranks share a core, so each thread may be bound to a core."""
    crowded: bool = False
    """True if there are more ranks than cores."""
    hbm: int = 0
    """Bytes of high-bandwidth memory per rank; 0 if there is none."""


def bind(
    cores: Cores, ranks: int, workers: int, mode: Bind, *, omp: int = 1, bind_workers: bool = True, need: int = 0
) -> Binding:
    """Give each rank a block of cores within one NUMA node, else within one socket, else in numeric order.

    `omp`: cores of a rank that its workers must leave free. `bind_workers`: False if the user binds them. `need`: bytes
    that a rank took in an earlier run; 0 if unknown.
    """
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
    cores_of_workers = {core for worker_cores in workers_of for core in worker_cores}
    bound = [
        [core for core in _bound_cores(block, cores.cores, mode) if core not in cores_of_workers] for block in blocks
    ]
    hbm = _hbm_share([cores.areas_of(rank_cores) for rank_cores in bound])
    memory = [_memory(rank_cores, cores, has_hbm=0 < hbm >= need) for rank_cores in bound]
    slots = tuple(map(RankSlot, map(cpus, bound), map(cpus, workers_of), memory))
    used_cpus = [number for slot in slots for number in slot.cores]
    alone = not cores.limited and len(used_cpus) == len(set(used_cpus))
    return Binding(slots, threads, formula, reserved, share, alone, crowded, hbm)


def rank_groups(cores: Sequence[Core]) -> list[tuple[Core, ...]]:
    """Return one group of cores for each NUMA node that holds at least half as many as the largest.

    The cores of other nodes go to the smallest group of their socket, behind its own cores. If no group is on their
    socket, they stay idle.
    """
    by_node: dict[int | None, list[Core]] = {}
    for core in cores:
        by_node.setdefault(core.node, []).append(core)
    most = max(map(len, by_node.values()), default=0)
    groups = {node: list(own) for node, own in by_node.items() if 2 * len(own) >= most}
    sockets = {node: {core.socket for core in own} for node, own in by_node.items()}
    for node in (node for node in by_node if node not in groups):
        on_socket = [other for other in groups if sockets[other] & sockets[node]]
        if on_socket:
            groups[min(on_socket, key=lambda other: (len(groups[other]), _or_last(other)))] += by_node[node]
    return [tuple(group) for group in groups.values()]


def _blocks(cores: Sequence[Core], ranks: int) -> list[tuple[Core, ...]]:
    """Return a block of cores for each rank, all of the same size.

    The first of these ways that has room for all ranks: the groups themselves; within NUMA nodes; within NUMA nodes
    whose cores are in groups; within sockets; in numeric order.
    """
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
    """Return the cores of a block that are on one socket, if these are enough for the rank's share of a quota; else
    all.
    """
    parts: dict[int | None, list[Core]] = {}
    for core in block:
        parts.setdefault(core.socket, []).append(core)
    largest = max(parts.values(), key=len, default=[])
    return tuple(largest) if len(largest) >= share else block


@lru_cache(maxsize=256)
def cores_per_rank(cpu: Cpu, ranks: int) -> int:
    """Return the cores of each rank; 0 if there are more ranks than cores."""
    return bind(cores_of(cpu), ranks, 0, "auto").share


def split_ranks(cores: Cores, binding: Binding) -> list[int]:
    """Return the local ranks with cores of several NUMA nodes, if these are on two sockets, or another rank has cores
    there too.

    Empty under a quota, where the kernel chooses among all cores.
    """
    if binding.crowded or cores.limited:
        return []
    core_of = {core.cpu: core for core in cores.cores}
    blocks = [[core_of[cpu] for cpu in (*slot.cores, *slot.workers) if cpu in core_of] for slot in binding.slots]
    nodes = [{core.node for core in block} for block in blocks]
    ranks_of = Counter(node for nodes_of_rank in nodes for node in nodes_of_rank)
    split: list[int] = []
    for local_rank, block in enumerate(blocks):
        has_two_sockets = len({core.socket for core in block}) > 1
        shares_a_node = any(ranks_of[node] > 1 for node in nodes[local_rank])
        if len(nodes[local_rank]) > 1 and (has_two_sockets or shares_a_node):
            split.append(local_rank)
    return split


def level(total: int, room: Sequence[int]) -> list[int]:
    """Distribute `total` evenly: each entry of the result is at most its `room`.

    The sum is less than `total` if there is not enough room.
    """
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
    """Return the cores that a rank is bound to: its block, or all cores of the block's NUMA nodes or sockets."""
    if mode == "numa":
        nodes = {(core.socket, core.node) for core in block}
        return [core for core in cores if (core.socket, core.node) in nodes]
    if mode == "socket":
        sockets = {core.socket for core in block}
        return [core for core in cores if core.socket in sockets]
    return block


def _hbm_share(areas_of_ranks: Sequence[Sequence[Area]]) -> int:
    """Return the bytes of high-bandwidth memory for the rank that gets the fewest; 0 if there is none."""
    ranks_of = Counter(area.number for areas in areas_of_ranks for area in areas)
    return min((sum(area.hbm_size // ranks_of[area.number] for area in areas) for areas in areas_of_ranks), default=0)


def _memory(bound: Sequence[Core], cores: Cores, *, has_hbm: bool) -> tuple[int, ...]:
    """Return the NUMA nodes with the memory of these cores, of the fast one if `has_hbm`; empty if these are all
    nodes.
    """
    areas = cores.areas_of(bound)
    hbm = tuple(sorted(number for area in areas for number in area.hbm)) if has_hbm else ()
    nodes = tuple(sorted(number for area in areas for number in area.memory))
    everything = sum(len(area.memory) for area in cores.areas_of(cores.cores))
    return hbm or (() if len(nodes) == everything > 1 else nodes)
