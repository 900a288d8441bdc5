"""Draw a machine: sockets, NUMA nodes, their memory, and a sign for each core that says which rank has it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ipexctl.facts.cpu import Cpu, CpuList, NumaNode, format_numa_nodes
from ipexctl.launch.topology import cores_of
from ipexctl.text import short_numbers
from ipexctl.ui.message_output import wrap_text

_RANK_SIGNS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MEANINGS: Final = {
    "*": "several ranks",
    "+": "oneCCL",
    ".": "idle",
    "e": "E-core",
    "-": "not for this account",
}
"""Sign of a core that no single rank has → its meaning."""


class DrawnRank(NamedTuple):
    """A rank as it is drawn."""

    numbers: Sequence[int]
    """Number of the rank on each of the hosts that are drawn as one."""
    cores: tuple[int, ...]
    """Empty if the rank is not bound."""
    workers: tuple[int, ...]
    memory: tuple[int, ...]
    threads: int


class _Row(NamedTuple):
    """One row: a NUMA node or a socket."""

    label: str
    memory: str
    sockets: frozenset[int]
    cores: Sequence[CpuList] = ()


def short_cpu(cpu: Cpu) -> str:
    """Return `Platinum 8358` for `Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz`; empty if the processor has no name."""
    text = re.sub(r"\((R|TM|r|tm)\)|\bCPU\b|\bProcessor\b|@.*|\d+-Core", " ", cpu.model_name or cpu.arch or "")
    short = re.sub(r"\b(Intel|Xeon|AMD)\b", " ", text, flags=re.IGNORECASE)
    return " ".join(short.split()) or " ".join(text.split())


def machine_lines(cpu: Cpu, ranks: Sequence[DrawnRank], width: int) -> Iterator[str]:
    """Yield the drawing, the meaning of its signs, and a line for each rank."""
    rows = list(_rows(cpu))
    signs = _signs(cpu, ranks)
    label, memory = (max((len(getattr(row, name)) for row in rows), default=0) for name in ("label", "memory"))
    for sockets in sorted({row.sockets for row in rows}, key=lambda numbers: (not numbers, sorted(numbers))):
        yield f"socket{'s' * (len(sockets) > 1)} {CpuList.of(sockets)}" if sockets else "without cores"
        for row in rows:
            if row.sockets == sockets:
                start = f"  {row.label:<{label}}  {row.memory:>{memory}}  "
                drawn = "".join(signs[core.cpus[0]] for core in row.cores)
                blocks = " ".join(drawn[at : at + 10] for at in range(0, len(drawn), 10))
                yield from wrap_text(blocks, width, start, " " * len(start)) or [start.rstrip()]
    meanings = [f"{sign} {text}" for sign, text in _MEANINGS.items() if sign in signs.values()]
    yield from wrap_text(f"({'; '.join(['each core has the sign of its rank'] * bool(ranks) + meanings)})", width)
    for at, rank in enumerate(ranks):
        yield from wrap_text(_rank_text(rank), width, f"{_rank_sign(at)}  ", " " * 5)


def _rank_text(rank: DrawnRank) -> str:
    """Describe a rank: its number, cores, threads and memory."""
    name = f"rank{'s' * (len(rank.numbers) > 1)} {short_numbers(rank.numbers)}"
    cores = f"cores {short_numbers(rank.cores)}" if rank.cores else "not bound"
    workers = f"oneCCL on {CpuList.of(rank.workers)}" if rank.workers else ""
    threads = f"{rank.threads} thread{'s' * (rank.threads != 1)}"
    memory = f"memory of {format_numa_nodes(rank.memory)}" if rank.memory else "any memory"
    return f"{name}: {', '.join(part for part in (cores, workers, threads, memory) if part)}"


def _rank_sign(at: int) -> str:
    """Return the sign of the rank at this position. Signs repeat after 36 ranks."""
    return _RANK_SIGNS[at % len(_RANK_SIGNS)]


def _signs(cpu: Cpu, ranks: Sequence[DrawnRank]) -> Mapping[int, str]:
    """Return the sign of each core, by its first thread."""
    allowed = {core.cpus[0] for core in _cores(cpu) if cpu.allowed_cpus is None or core & cpu.allowed_cpus}
    fast = {core.cpu for core in cores_of(cpu).cores}
    sign_of: dict[int, str] = {}
    for at, rank in enumerate(ranks):
        for number in rank.cores or fast:
            sign_of[number] = _rank_sign(at) if number not in sign_of else "*"
        sign_of.update(dict.fromkeys(rank.workers, "+"))
    signs: dict[int, str] = {}
    for core in _cores(cpu):
        first = core.cpus[0]
        of_ranks = [sign_of[number] for number in core if number in sign_of]
        is_slow = first in allowed and not any(number in fast for number in core)
        signs[first] = of_ranks[0] if of_ranks else "-" if first not in allowed else "e" if is_slow else "."
    return signs


def _cores(cpu: Cpu) -> Sequence[CpuList]:
    """Return the threads of each core; a core for each CPU if the kernel does not tell."""
    return cpu.siblings or [CpuList((number,)) for number in cpu.online or ()]


def _rows(cpu: Cpu) -> Iterator[_Row]:
    """Yield a row for each NUMA node; one for nodes that list the same CPUs, and one for each socket if there are no
    nodes.
    """
    by_cpus: dict[CpuList, list[NumaNode]] = {}
    for node in cpu.numa:
        by_cpus.setdefault(node.cpus, []).append(node)
    rows = [(nodes, cpus) for cpus, nodes in by_cpus.items() if cpus]
    rows += [([node], CpuList()) for node in by_cpus.get(CpuList(), ())]
    home_of = {number: area.cpus for area in cores_of(cpu).areas for number in area.hbm}
    for nodes, cpus in rows:
        node_cpus = set(cpus)
        cores = [core for core in _cores(cpu) if core.cpus[0] in node_cpus]
        near = cpus or home_of.get(nodes[0].number, CpuList())
        sockets = frozenset(at for at, package in enumerate(cpu.packages) if package & near)
        label = format_numa_nodes(node.number for node in nodes)
        memory = _memory(nodes, is_hbm=nodes[0] in cpu.hbm) if any(node.memory for node in cpu.numa) else ""
        yield _Row(label, memory, sockets, cores)
    if not rows:
        for at, package in enumerate(cpu.packages or (cpu.online or CpuList(),)):
            yield _Row("cores", "", frozenset({at}), [core for core in _cores(cpu) if core.cpus[0] in package])


def _memory(nodes: Sequence[NumaNode], *, is_hbm: bool) -> str:
    """Format the memory of the nodes; empty if it is unknown."""
    known = [node.memory for node in nodes if node.memory is not None]
    size = f"{sum(known) / 2**30:.3g} GiB {'HBM' if is_hbm else 'RAM'}" if any(known) else "no memory"
    return size if known else ""
