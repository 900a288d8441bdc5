"""Distribute ranks over the hosts by slots, -n and --ppn, else one per NUMA node; refuse what memory cannot hold.
Nothing here reads a file or contacts a host.

No host gets more ranks than cores, unless --oversubscribe allows it. Ranks are refused for lack of memory only if it is
certain: torch alone does not fit, an estimate does not fit without activations, or a host gets more ranks than in an
earlier run and they would not fit. All else is a note, because another model or batch needs another amount.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ipexctl.errors import Refusal
from ipexctl.facts.facts import Facts
from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.launch.plan_draft import PlanDraft, RankDistribution
from ipexctl.launch.topology import cores_of, default_ranks, level, tasks_of
from ipexctl.launch.training_memory import describe, ways_to_fit
from ipexctl.node.common.fix import Fix, ipexctl_command, join_fixes
from ipexctl.node.common.run_options import RunOptions
from ipexctl.text import format_count, readable

MAX_RANKS_PER_CORE: Final = 64
"""Limit even with --oversubscribe, because merely starting more ranks can stop a host from answering."""


def ranks_on(hosts: Sequence[Host], facts: Mapping[str, Facts], asked: RunOptions) -> RankDistribution | Refusal:
    """Return the ranks of each host, or a refusal if a host has too few cores.

    A host whose cores are unknown passes.
    """
    cpus = {host.name: facts[host.name].cpu for host in hosts}
    distribution = distribute_ranks(hosts, asked.n, asked.ppn, min(map(default_ranks, cpus.values())))
    if isinstance(distribution, Refusal):
        return distribution
    hosts_by_shortage = defaultdict[tuple[int, int], list[str]](list)
    for host, count in zip(hosts, distribution.counts, strict=True):
        cores = cores_of(cpus[host.name])
        is_known = bool(cores.cores) or cpus[host.name].allowed is not None
        if is_known and count > cores.count * (MAX_RANKS_PER_CORE if asked.oversubscribe else 1):
            hosts_by_shortage[count, cores.count].append(host.name)
    if not hosts_by_shortage:
        return replace(distribution, reason=asked.sources.get("ranks", distribution.reason))
    shares = ", ".join(
        f"{ranks} on {format_count(cores, 'core')} of {'each of ' * (len(names) > 1)}{fold(names)}"
        for (ranks, cores), names in hosts_by_shortage.items()
    )
    fix = "a core for each rank: " + fewer_ranks(asked, min(cores for _, cores in hosts_by_shortage))
    return Refusal(
        f"more {f'than {MAX_RANKS_PER_CORE} ranks a core' if asked.oversubscribe else 'ranks than cores'}: {shares}",
        fix if asked.oversubscribe else fix + "; --oversubscribe lets them share",
        tuple(name for names in hosts_by_shortage.values() for name in names),
        exit_code=2,
    )


def fewer_ranks(asked: RunOptions, ppn: int) -> Fix:
    """Return the command of this run with so many ranks on each host, as a fix."""
    resume = ("--resume", asked.resumed[-1]) if asked.resumed else ()
    return Fix.of((ipexctl_command("run", *resume, "--ppn", str(ppn), argv=() if resume else asked.program),))


def distribute_ranks(hosts: Sequence[Host], n: int | None, ppn: int | None, default: int) -> RankDistribution | Refusal:
    """Distribute the ranks, or refuse a number that --ppn or `max_slots` does not allow.

    `default`: number of ranks of a host without slots. The cores of the hosts do not count here.
    """
    result = _by_ppn(hosts, n, ppn) if ppn is not None else _by_slots(hosts, n, default)
    if isinstance(result, Refusal):
        return result
    notes = [*result.notes, *_uneven(hosts, result.counts, n)]
    beyond = [host.name for host, count in zip(hosts, result.counts, strict=True) if host.slots and count > host.slots]
    if beyond:
        notes.append(f"more ranks than slots on {fold(beyond)}, by -n or --ppn")
    by_default = n is None and ppn is None and not any(host.slots for host in hosts)
    return RankDistribution(result.counts, result.reason, tuple(notes), by_default)


def _by_ppn(hosts: Sequence[Host], n: int | None, ppn: int) -> RankDistribution | Refusal:
    """Fill the hosts in order, with `ppn` ranks each."""
    short = [host.name for host in hosts if host.max_slots is not None and ppn > host.max_slots]
    if short and (n is None or n > ppn or hosts[0].name in short):
        maximum = min(host.max_slots or 0 for host in hosts if host.name in short)
        return Refusal(
            f"--ppn {ppn} is more than max_slots={maximum} of {fold(short)}",
            f"--ppn {maximum}, or another max_slots",
            tuple(short),
        )
    total = ppn * len(hosts) if n is None else n
    if total > ppn * len(hosts):
        needed = -(-total // ppn)
        return Refusal(
            f"-n {total} with --ppn {ppn} takes {needed} hosts, not {len(hosts)}",
            f"-n {ppn * len(hosts)}, or --ppn {-(-total // len(hosts))}",
        )
    counts = tuple(max(0, min(ppn, total - ppn * at)) for at in range(len(hosts)))
    return RankDistribution(counts, f"--ppn {ppn}" if n is None else f"-n {n}, --ppn {ppn}")


def _by_slots(hosts: Sequence[Host], n: int | None, default: int) -> RankDistribution | Refusal:
    """Give each host its slots, or share `n` ranks evenly within the slots; beyond them, evenly up to `max_slots`."""
    slots = [min(host.slots or default, host.max_slots or 1 << 20) for host in hosts]
    has_slots = any(host.slots for host in hosts)
    if n is None:
        reason = "its slots" if has_slots else "by the NUMA nodes and the cores of the smallest host"
        return RankDistribution(tuple(slots), reason)
    if not has_slots:
        slots = [0] * len(hosts)  # without slots none can be exceeded: distribute evenly
    counts = level(n, slots)
    beyond_slots = n - sum(counts)
    if beyond_slots:
        room = [(host.max_slots or 1 << 20) - count for host, count in zip(hosts, counts, strict=True)]
        more = level(beyond_slots, room)
        if sum(more) < beyond_slots:
            maximum = n - beyond_slots + sum(more)
            return Refusal(f"-n {n} is more than the {maximum} ranks that max_slots allows in total", f"-n {maximum}")
        counts = [count + extra for count, extra in zip(counts, more, strict=True)]
    return RankDistribution(tuple(counts), f"-n {n}, shared evenly" + (" within the slots" if has_slots else ""))


def _uneven(hosts: Sequence[Host], counts: Sequence[int], n: int | None) -> list[str]:
    """Warn of hosts without ranks, and of hosts with more ranks than others."""
    idle = [host.name for host, count in zip(hosts, counts, strict=True) if not count]
    busy = [count for count in counts if count]
    notes = []
    if idle:
        notes.append(f"no ranks on {fold(idle)}: {format_count(sum(counts), 'rank')} for {len(hosts)} hosts")
    if n is not None and busy and min(busy) != max(busy):
        notes.append(
            f"{n} ranks don't divide evenly: hosts have {min(busy)} to {max(busy)}, and those with more set the pace"
        )
    return notes


TORCH_START: Final = 210 << 20
"""Private memory of a process after its first step of a tiny model: torch 2.13 with gloo, on x86-64."""


def memory_refusal(draft: PlanDraft) -> Refusal | None:
    """Refuse ranks that certainly do not fit into the free memory of a host; None if all fit, or --oversubscribe is
    set.
    """
    earlier, planned, asked = draft.context.earlier_memory, draft.plan.memory, draft.context.asked
    for node in draft.nodes:
        free, shared, size, whence = node.facts.memory.free, 0, 0, ""
        if free is None or asked.oversubscribe:
            continue
        if planned is not None:
            shared, whence = planned.of(0), f"without activations ({describe(planned)})"
            size = planned.of(1, without="activations") - shared
        elif node.count > 1 and earlier is None and asked.kind != "command":
            size, whence = TORCH_START, "for Python with torch alone"
        elif node.count > 1 and earlier is not None and node.count > earlier.ppn > 0:
            size, whence = earlier.size, f"as in run {earlier.run}"
        if shared + node.count * size > free:
            fitting = (free - shared) // size
            fewer = [fewer_ranks(asked, max(1, fitting))] if fitting > 0 or planned is None else []
            others = ways_to_fit(draft, node.count, free)
            return Refusal(
                f"{format_count(node.count, 'rank')} would take {readable(shared + node.count * size)} of memory on "
                f"{node.name}, {readable(size)} each {whence}, and {readable(free)} are free",
                join_fixes((*fewer, *others, "a host with more memory"), ", or ") + "; --oversubscribe ignores it",
                (node.name,),
                exit_code=2,
            )
    return None


def memory_notes(draft: PlanDraft) -> Iterator[str]:
    """Warn of hosts whose memory may be too small, by an earlier run, the estimate, or torch alone."""
    earlier, planned, hosts = draft.context.earlier_memory, draft.plan.memory, defaultdict[str, list[str]](list)
    for node in draft.nodes:
        free, needed, whence, ranks = node.facts.memory.free, 0, "", format_count(node.count, "rank")
        if free is None:
            continue
        if earlier is not None:
            needed, whence = node.count * earlier.size, f"{readable(earlier.size)} each as in run {earlier.run}"
        elif planned is not None:
            needed, whence = planned.hosts[node.name], "batches of the longest sequences"
        if needed > free:
            text = (
                f"{ranks} on {{}} would take {readable(needed)} of memory, with {whence}, and {readable(free)} are "
                "free: the kernel may kill one (signal 9); fewer ranks: --ppn, or a smaller batch"
            )
            hosts[text].append(node.name)
        elif not whence and node.count > 1 and 2 * node.count * TORCH_START > free:
            text = (
                f"{ranks} on {{}} have {readable(free // node.count)} of free memory each, and Python with torch "
                f"takes {readable(TORCH_START)} before there is a model: the kernel may kill one (signal 9); fewer "
                "ranks: --ppn"
            )
            hosts[text].append(node.name)
    for text, names in hosts.items():
        yield text.format(fold(names))


def tasks_notes(draft: PlanDraft) -> Iterator[str]:
    """Warn of hosts whose cgroup does not allow the processes and threads of the plan."""
    for node in draft.nodes:
        left, needed = node.facts.limits.pids_left, tasks_of(node.count, node.binding.threads)
        if left is not None and left < needed:
            yield (
                f"{format_count(node.count, 'rank')} on {node.name} need about {needed} processes and threads, and its "
                f"cgroup allows {left} more (pids.max): fewer ranks or threads: --ppn, --omp; or raise TasksMax="
            )
