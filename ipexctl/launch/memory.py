"""Refuses, or notes, ranks that may not fit into a host's memory. Pure.

A rank takes what it took in an earlier run of this script, or at least what Python with torch takes before it has a
model. Unless --oversubscribe is given, ranks are refused if torch alone does not fit, or if a host gets more ranks than
in the earlier run and they do not fit. All else is a note, because another model or batch needs another amount.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ipexctl.errors import Refusal
from ipexctl.facts.system_facts import Memory
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.context import LaunchContext
from ipexctl.launch.rank_distribution import fewer_ranks
from ipexctl.text import counted, readable

TORCH_START: Final = 210 << 20
"""Private memory of a process after its first step of a tiny model: torch 2.13 with gloo, on x86-64."""


@dataclass(frozen=True, slots=True)
class EarlierMemory:
    size: int
    run: str
    ppn: int = 0
    """Most ranks that the earlier run had on one host; 0 if its record does not say."""


def refusal(context: LaunchContext) -> Refusal | None:
    """Why the ranks can't fit, for the first host where they can't."""
    earlier, spec = context.gathered.earlier_memory, context.gathered.spec
    for node in context.nodes:
        free = _free(node.facts.memory)
        if free is None or node.count == 1 or spec.oversubscribe:
            continue
        if earlier is not None:
            size, whence = (earlier.size, f"as in run {earlier.run}") if node.count > earlier.ppn > 0 else (0, "")
        else:
            size, whence = (0, "") if spec.kind == "command" else (TORCH_START, "for Python with torch alone")
        if node.count * size > free:
            return Refusal(
                f"{node.count} ranks would take {readable(node.count * size)} of memory on {node.name}, "
                f"{readable(size)} each {whence}, and {readable(free)} are free",
                f"{fewer_ranks(spec, max(1, free // size))}, or a host with more memory; --oversubscribe ignores it",
                (node.name,),
                exit_code=2,
            )
    return None


def notes(context: LaunchContext) -> Iterator[str]:
    """One line for all hosts with the same problem."""
    earlier, hosts = context.gathered.earlier_memory, defaultdict[str, list[str]](list)
    for node in context.nodes:
        free = _free(node.facts.memory)
        if free is None:
            continue
        ranks = counted(node.count, "rank")
        if earlier is not None:
            if node.count * earlier.size > free:
                text = (
                    f"{ranks} on {{}} would take {readable(node.count * earlier.size)} of memory, with "
                    f"{readable(earlier.size)} each as in run {earlier.run}, and {readable(free)} are free: the "
                    "kernel may kill one (signal 9); fewer ranks: --ppn, or a smaller batch"
                )
                hosts[text].append(node.name)
        elif node.count > 1 and 2 * node.count * TORCH_START > free:
            text = (
                f"{ranks} on {{}} have {readable(free // node.count)} of free memory each, and Python with torch "
                f"takes {readable(TORCH_START)} before there is a model: the kernel may kill one (signal 9); fewer "
                "ranks: --ppn"
            )
            hosts[text].append(node.name)
    for text, names in hosts.items():
        yield text.format(fold(names))


def _free(memory: Memory) -> int | None:
    """Available memory of the host or of its cgroup, whichever is less; None if unknown."""
    known = [size for size in (memory.available, memory.limit) if size is not None]
    return min(known, default=None)
