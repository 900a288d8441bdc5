"""A host's physical cores that ranks may have, in the order they lie in: by socket, NUMA node, number. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipexctl.facts.cpu import Cpu
    from ipexctl.facts.cpulist import CpuList

_HYBRID_MODELS: Final = frozenset({151, 154, 170, 172, 183, 186, 189, 191, 197, 198, 204})
"""Intel's family 6 with two kinds of cores: Alder, Raptor, Meteor, Arrow, Lunar and Panther Lake."""


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core, by the one of its threads that a rank is bound to."""

    cpu: int
    node: int | None = None
    socket: int | None = None


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores ranks may have on a host."""

    each: tuple[Core, ...] = ()
    """Empty where nothing is known of them but, perhaps, how many."""
    count: int = 1
    """How many of them can be busy at once: fewer than there are, under a quota."""
    limited: bool = False
    """Whether a quota holds back some of their time. Other containers may then be on the same cores."""
    left_out: int = 0
    """E-cores: a rank that waits for one makes all others wait."""

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(sorted({core.node for core in self.each if core.node is not None}))


def cores_of(cpu: Cpu) -> Cores:
    """Physical cores only, one thread of each; allowed ones only; no E-cores where they can be told."""
    kept, left_out = _without_e_cores(cpu)
    if not kept:
        return Cores(count=cpu.allowed or 1)
    node = {number: each.number for each in cpu.numa for number in each.cpus}
    socket = {number: at for at, package in enumerate(cpu.packages) for number in package}
    cores = [Core(core.cpus[0], node.get(core.cpus[0]), socket.get(core.cpus[0])) for core in kept]
    cores.sort(key=lambda core: (_or_last(core.socket), _or_last(core.node), core.cpu))
    granted = len(cores) if cpu.quota is None else min(len(cores), max(1, math.ceil(cpu.quota)))
    return Cores(tuple(cores), granted, granted < len(cores), left_out)


def numa_nodes(cpu: Cpu) -> int:
    """NUMA nodes with a CPU this account may use; one where nothing is known."""
    allowed = cpu.allowed_cpus
    if allowed is None:
        return cpu.numa_nodes or 1
    return sum(1 for node in cpu.numa if node.cpus & allowed) or 1


def _without_e_cores(cpu: Cpu) -> tuple[tuple[CpuList, ...], int]:
    """On a hybrid CPU with threads, the cores without a second one are the slow ones."""
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
