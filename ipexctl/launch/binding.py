"""Which cores each rank of a host gets, and oneCCL's workers beside it. Pure, and the same for every host."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from ipexctl.launch.defaults import threads_of_rank
from ipexctl.launch.topology import cpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.launch.request import Bind
    from ipexctl.launch.topology import Core, Cores


@dataclass(frozen=True, slots=True)
class RankSlot:
    """One rank's place on its host."""

    cores: tuple[int, ...] = ()
    workers: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Binding:
    """All ranks of one host, seated."""

    seats: tuple[RankSlot, ...]
    threads: int
    """OpenMP's, for each rank."""
    formula: str
    workers: int
    """Of oneCCL, on cores of their own; 0 where a rank has no core to spare."""
    alone: bool
    """Whether every rank has its cores to itself, so that its threads may be bound to them one by one."""
    crowded: bool = False
    """Whether there are more ranks than cores."""


def bind(cores: Cores, ranks: int, workers: int, mode: Bind) -> Binding:
    """Blocks of cores within one NUMA node, else within one socket, else as they lie."""
    threads, formula = threads_of_rank(cores.count, ranks, workers)
    apart = workers if cores.count // ranks > workers else 0
    crowded = ranks > cores.count
    if mode == "none" or not cores.each:
        return Binding((RankSlot(),) * ranks, threads, formula, apart, alone=False, crowded=crowded)
    if ranks > len(cores.each):
        # Pinned, two of three ranks on two cores would share one, and the third would wait: the kernel is fairer.
        everything = RankSlot(cpus(cores.each))
        return Binding((everything,) * ranks, threads, formula, 0, alone=False, crowded=True)
    blocks = _blocks(cores.each, ranks)
    # Under a quota others are on the same machine, and would choose the same first cores: workers stay free there.
    split = apart and not cores.limited
    workers_of = [block[-apart:] if split else () for block in blocks]
    taken = {core for each in workers_of for core in each}
    seats = []
    for block, own in zip(blocks, workers_of, strict=True):
        room = [core for core in _room(block, cores.each, mode) if core not in taken]
        seats.append(RankSlot(cpus(room), cpus(own), _memory(room, cores)))
    everyones = [number for slot in seats for number in slot.cores]
    alone = not cores.limited and len(everyones) == len(set(everyones))
    return Binding(tuple(seats), threads, formula, apart, alone, crowded)


def _blocks(cores: Sequence[Core], ranks: int) -> list[tuple[Core, ...]]:
    """As many cores for each, all blocks of one size: the slowest rank sets the pace."""
    size = len(cores) // ranks
    for kind in ("node", "socket"):
        groups = [tuple(group) for _, group in groupby(cores, key=lambda core: (core.socket, getattr(core, kind)))]
        if kind == "socket":
            groups = [tuple(group) for _, group in groupby(cores, key=lambda core: core.socket)]
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
    """So many shared out one by one, the first first, to those with room left; fewer where there is none."""
    counts = [0] * len(room)
    while total:
        open_ones = [at for at, most in enumerate(room) if counts[at] < most]
        if not open_ones:
            break
        # Whole rounds at once: a hostfile may grant thousands.
        rounds = max(1, min(total // len(open_ones), min(room[at] - counts[at] for at in open_ones)))
        for at in open_ones[: total if total < len(open_ones) else None]:
            counts[at] += rounds
            total -= rounds
    return counts


def _room(block: Sequence[Core], cores: Sequence[Core], mode: Bind) -> Sequence[Core]:
    """What a rank is bound to: its block, or all of the NUMA nodes or sockets the block lies in."""
    if mode == "numa":
        nodes = {(core.socket, core.node) for core in block}
        return [core for core in cores if (core.socket, core.node) in nodes]
    if mode == "socket":
        sockets = {core.socket for core in block}
        return [core for core in cores if core.socket in sockets]
    return block


def _memory(room: Sequence[Core], cores: Cores) -> tuple[int, ...]:
    """The nodes the cores lie in; none where that is all there are."""
    nodes = tuple(sorted({core.node for core in room if core.node is not None}))
    return () if nodes == cores.nodes and len(nodes) > 1 else nodes
