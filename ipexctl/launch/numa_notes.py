"""Write notes on ranks and NUMA nodes: nodes that get no rank of their own, ranks that span several, high-bandwidth
memory.

Advice to use another `--ppn` always names the number of ranks that is the default, or one for each socket.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial

from ipexctl.facts.cpu import CpuList, format_numa_nodes
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.plan_draft import NodeLayout, PlanDraft
from ipexctl.launch.topology import bind, default_ranks, split_ranks
from ipexctl.text import format_count


def more_than_sockets(draft: PlanDraft) -> Iterator[str]:
    """Warn that Sub-NUMA clustering makes several ranks per socket, each with its own model and batch."""
    ranks = draft.nodes[0].count
    fewest_sockets = min(len({core.socket for core in node.cores.cores} - {None}) for node in draft.nodes)
    if (
        not fewest_sockets
        or ranks <= fewest_sockets
        or any(_is_split_with(node, fewest_sockets) for node in draft.nodes)
    ):
        return
    yield (
        f"{ranks} ranks on each host, by its NUMA nodes: {ranks} copies of model and optimizer in its memory, and "
        f"a global batch of {draft.world_size} x the per-device batch; one for each socket: --ppn {fewest_sockets}"
    )


def _is_split_with(node: NodeLayout, ranks: int) -> bool:
    """True if, with this number of ranks, a rank would have cores of several NUMA nodes."""
    return bool(split_ranks(node.cores, bind(node.cores, ranks, 0, "auto")))


def choices(draft: PlanDraft) -> Iterator[str]:
    """Yield an explanation of the high-bandwidth memory that ranks use."""
    yield from _by_text(draft, partial(_hbm, draft, is_enough=True))


def _hbm(draft: PlanDraft, node: NodeLayout, *, is_enough: bool) -> str:
    """Describe the HBM of a node: that ranks use it (`is_enough`), or that they leave it because an earlier run needed
    more.

    Empty if the node has no HBM, or if the other is the case.
    """
    share, earlier = node.binding.hbm, draft.context.earlier_memory
    if not share or is_enough != (earlier is None or earlier.size <= share):
        return ""
    numbers = CpuList.of(number for area in node.cores.areas for number in area.hbm)
    about = f"memory of ranks on {{}}: {share / 2**30:.3g} GiB of HBM for each (flat mode, NUMA nodes {numbers})"
    if earlier is not None and not is_enough:
        size = f"{earlier.size / 2**30:.3g} GiB of a rank in run {earlier.run}"
        return f"{about}, too little for the {size}: DDR is used"
    return f"{about} before DDR, because HBM has more bandwidth; what does not fit goes to DDR"


def notes(draft: PlanDraft) -> Iterator[str]:
    """Yield the notes on NUMA nodes.

    Those on cores are left out if the user chose another binding than that to cores.
    """
    best = min(default_ranks(node.facts.cpu) for node in draft.nodes)
    is_by_cores = draft.context.asked.bind in ("auto", "cores") and not draft.bound_by_mpi
    by_cores = (_without_rank, partial(_straddling, best)) if is_by_cores else ()
    for text_of in (_without_memory, partial(_hbm, draft, is_enough=False), *by_cores, _old_kernel):
        yield from _by_text(draft, text_of)


def _by_text(draft: PlanDraft, text_of: Callable[[NodeLayout], str]) -> Iterator[str]:
    """Yield each text of `text_of` once, with the names of its hosts in place of `{}`. An empty text is left out."""
    hosts: defaultdict[str, list[str]] = defaultdict(list)
    for node in draft.nodes:
        hosts[text_of(node)].append(node.name)
    yield from (text.format(fold(names)) for text, names in hosts.items() if text)


def _without_memory(node: NodeLayout) -> str:
    """Warn of NUMA nodes that have cores and no memory; empty if the ranks use no core there."""
    with_memory = {number for area in node.cores.areas for number in area.memory}
    empty = [numa for numa in node.facts.cpu.numa if numa.number not in with_memory]
    far = {number for numa in empty for number in numa.cpus}
    cores = sum(core.cpu in far for core in node.cores.cores)
    numbers = format_numa_nodes(numa.number for numa in empty if numa.cpus)
    return (
        f"{numbers} on {{}} without memory: {format_count(cores, 'core')} there use the nearest node's" if cores else ""
    )


def _without_rank(node: NodeLayout) -> str:
    """Warn of small NUMA nodes without a rank of their own; else of idle cores, unless they are fewer than the
    ranks.
    """
    cores, binding = node.cores.cores, node.binding
    if node.cores.limited or binding.crowded or not cores:
        return ""
    used = {cpu for slot in binding.slots for cpu in (*slot.cores, *slot.workers)}
    first_cores = {slot.cores[0] for slot in binding.slots}
    size_of = Counter(core.node for core in cores)
    largest = max(size_of.values())
    without_own = size_of.keys() - {core.node for core in cores if core.cpu in first_cores} - {None}
    idle = [core for core in cores if core.cpu not in used]
    if without_own and all(2 * size_of[number] < largest for number in without_own):
        there, unused = sum(size_of[number] for number in without_own), sum(core.node in without_own for core in idle)
        use = f"{unused} of them idle" if unused else "ranks of their socket have them"
        return (
            f"no rank of its own for {format_numa_nodes(without_own)} on {{}}: {format_count(there, 'core')} there, "
            f"fewer than half of the {largest} in the largest node; {use}"
        )
    if len(idle) < node.count:
        return ""
    return (
        f"{format_count(len(idle), 'core')} of {format_numa_nodes(core.node for core in idle)} on {{}} idle: each of "
        f"{format_count(node.count, 'rank')} has {binding.share}, as many as fit into the smallest NUMA node"
    )


def _straddling(best: int, node: NodeLayout) -> str:
    """Warn of ranks with cores of several NUMA nodes; empty without any. `best`: the default number of ranks."""
    split = split_ranks(node.cores, node.binding)
    if not split:
        return ""
    ranks = fold(str(node.first + at) for at in split).strip("[]")
    advice = "" if best == node.count or _is_split_with(node, best) else f"; --ppn {best} fits the nodes better"
    return (
        f"rank{'s' * (len(split) > 1)} {ranks} on {{}}: cores of several NUMA nodes, and memory of the far ones is "
        f"slower{advice}"
    )


def _old_kernel(node: NodeLayout) -> str:
    """Warn of a kernel that cannot prefer several NUMA nodes, if a rank has the memory of several."""
    version = [int(number) for number in re.findall(r"\d{1,4}", node.facts.system.kernel or "")[:2]]
    if not version or version >= [5, 15] or all(len(slot.memory) < 2 for slot in node.binding.slots):
        return ""
    return (
        f"kernel {'.'.join(map(str, version))} of {{}} may not know how to prefer several NUMA nodes (5.15 does): "
        "the memory of ranks on several then lies where their threads first write it"
    )
