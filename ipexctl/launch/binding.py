"""Assigns cores to the ranks of a host and to their oneCCL workers. Pure.

All ranks get the same number of cores, because the slowest sets the pace, and in one NUMA node where they fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ipexctl.launch.topology import Core, Cores, cpus, threads_of_rank
from ipexctl.spec import Bind


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
    """oneCCL workers per rank with their own cores; 0 if a rank has no core to spare."""
    alone: bool
    """True if no two ranks share a core, so each thread may be bound to one."""
    crowded: bool = False


def bind(cores: Cores, ranks: int, workers: int, mode: Bind, *, omp: int = 1, bind_workers: bool = True) -> Binding:
    """Give each rank a block of cores within one NUMA node, else within one socket, else in numeric order.

    `omp`: how many cores of a rank its workers must leave free. `bind_workers`: false if something else binds them.
    """
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
    """Blocks of the same size, one for each rank."""
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
    """Deal out `total` one by one to entries that have room left; stops early if all are full."""
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
    """The cores a rank is bound to: its block, or all cores of the block's NUMA nodes or sockets."""
    if mode == "numa":
        nodes = {(core.socket, core.node) for core in block}
        return [core for core in cores if (core.socket, core.node) in nodes]
    if mode == "socket":
        sockets = {core.socket for core in block}
        return [core for core in cores if core.socket in sockets]
    return block


def _memory(bound: Sequence[Core], cores: Cores) -> tuple[int, ...]:
    """The NUMA nodes of the cores; empty if these are all nodes."""
    nodes = tuple(sorted({core.node for core in bound if core.node is not None}))
    return () if nodes == cores.nodes and len(nodes) > 1 else nodes
