"""Judge the machines of several hosts together: one machine under two names, different hardware or accounts. Pure.

A host whose fact is unknown takes no part in the rule about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ipexctl.doctor.finding import ClusterContext, ClusterRule, Finding, few, groups, odd_ones, size, span, usable_cores
from ipexctl.facts.cpu import TIERS, X86
from ipexctl.launch.topology import default_ranks, numa_nodes
from ipexctl.node.common.fix import Fix
from ipexctl.text import format_count

_LEAVE_OUT: Final = "train without them (--limit '!NAME,!NAME'), or accept it"
_WORTH_SAYING: Final = 1.05
"""Least gain from leaving hosts out that is reported; less is noise on most clusters."""


def gain_without_slow(speeds: Mapping[str, float]) -> tuple[float, tuple[str, ...]]:
    """Return how many times faster the hosts train together without the slowest ones, and the names of these. The gain
    is 1 if leaving hosts out does not pay."""
    ordered = sorted(speeds.values(), reverse=True)
    best = max(range(len(ordered)), key=lambda last: (last + 1) * ordered[last])
    gain = (best + 1) * ordered[best] / (len(ordered) * ordered[-1])
    return gain, tuple(name for name, speed in speeds.items() if speed < ordered[best])


def same_machine(cluster: ClusterContext) -> Iterator[Finding]:
    """Warn of names that lead to one machine. Hosts with unknown interfaces are skipped, because containers on one
    kernel look alike."""
    by_machine = groups(cluster.nodes, lambda node: node.facts.machine if node.facts.has_finished("network") else None)
    for names in by_machine.values():
        if len(names) > 1:
            yield Finding(
                "cluster.same_machine",
                "warn",
                f"{len(names)} names lead to one machine: their ranks share its cores and memory, so they are "
                "slower than planned",
                f"keep one of the names in the hostfile; for more ranks: NAME slots={len(names)}",
                tuple(names),
            )


def same_hostname(cluster: ClusterContext) -> Iterator[Finding]:
    """Warn of different machines with one host name: MPI and oneCCL assume that ranks there share memory."""
    by_hostname = groups(cluster.nodes, lambda node: node.facts.network.hostname)
    machines = {node.name: node.facts.machine for node in cluster.nodes}
    for hostname, names in by_hostname.items():
        known = {machines[name] for name in names}
        if len(names) > 1 and None not in known and len(known) > 1:
            yield Finding(
                "cluster.same_hostname",
                "warn",
                f"Different machines have the host name {hostname[:40]}: MPI and oneCCL take them for one machine, "
                "look for shared memory, and hang",
                "if no service on them (Slurm, Kerberos, a directory service) uses the name, give each machine its "
                "own name, as root, with hostnamectl set-hostname",
                tuple(names),
            )


def arch(cluster: ClusterContext) -> Iterator[Finding]:
    """Report a failure if hosts have different kinds of processors. All names of x86-64 are one kind."""
    by_kind = groups(cluster.nodes, lambda node: node.facts.cpu.arch)
    if len({"x86_64" if kind in X86 else kind for kind in by_kind}) > 1:
        usual, others, names = odd_ones(by_kind)
        yield Finding(
            "cluster.mixed_arch",
            "fail",
            f"{few(others)}, but {usual} on the other hosts: a job needs one kind of processor, because libraries are "
            "built for one kind",
            "train on one kind at a time: --limit '!NAME,!NAME'",
            names,
        )


def tiers(cluster: ClusterContext) -> Iterator[Finding]:
    """Warn of the hosts with the weakest instruction set, for which all ranks wait. Hosts without AVX2 have a finding
    of their own."""
    by_tier = groups(cluster.runnable, lambda node: node.facts.cpu.tier)
    by_tier.pop("unsupported", None)
    if len(by_tier) < 2:
        return
    ordered = sorted(by_tier, key=TIERS.index)
    weakest, best = ordered[0], ordered[-1]
    count = sum(len(names) for names in by_tier.values())
    needed = 100 * count / (count - len(by_tier[weakest])) - 100
    yield Finding(
        "cluster.mixed_tiers",
        "warn",
        f"{weakest}, but {best} elsewhere: every rank waits for these hosts. The others alone train faster if each of "
        f"them is at least {needed:.0f}% faster",
        Fix("measure it: `ipexctl doctor --smoke`; then {leave_out}", leave_out=_LEAVE_OUT),
        tuple(by_tier[weakest]),
    )


def cores(cluster: ClusterContext) -> Iterator[Finding]:
    """Warn of hosts with few usable cores, if the others alone would train noticeably faster."""
    have = {node.name: count for node in cluster.runnable if (count := usable_cores(node.facts.cpu)) is not None}
    if len(set(have.values())) < 2:
        return
    gain, small = gain_without_slow(have)
    if gain < _WORTH_SAYING:
        return
    fewest, maximum = min(have[name] for name in small), max(have[name] for name in small)
    minimum = min(count for name, count in have.items() if name not in small)
    yield Finding(
        "cluster.mixed_cores",
        "warn",
        f"{span(fewest, maximum)} usable cores, but {minimum} or more on the other hosts: with equal batches all ranks "
        f"wait for the smallest, and the other hosts alone would be about {100 * gain - 100:.0f}% faster",
        f"{_LEAVE_OUT}; each host's own findings show why it has fewer",
        small,
    )


def numa(cluster: ClusterContext) -> Iterator[Finding]:
    """Say that hosts have different numbers of NUMA nodes. Each host gets the ranks of the one with the fewest."""
    by_count = groups(cluster.runnable, lambda node: numa_nodes(node.facts.cpu) if node.facts.cpu.numa else None)
    if len(by_count) < 2:
        return
    usual, others, names = odd_ones(by_count)
    ranks = min(default_ranks(node.facts.cpu) for node in cluster.runnable)
    yield Finding(
        "cluster.mixed_numa",
        "info",
        f"NUMA nodes: {span(min(others), max(others))}, but {usual} on the other hosts; every host gets "
        f"{format_count(ranks, 'rank')}",
        "nothing to do; --ppn sets another number of ranks, and the firmware's SNC or NPS setting another number of "
        "NUMA nodes",
        names,
    )


def memory(cluster: ClusterContext) -> Iterator[Finding]:
    """Warn of hosts with less than three quarters of the largest host's memory."""
    have = {m.name: usable for m in cluster.runnable if (usable := m.facts.memory.usable) is not None}
    maximum = max(have.values(), default=0)
    small = tuple(name for name, usable in have.items() if usable < 0.75 * maximum)
    if small:
        minimum = min(have[name] for name in small)
        yield Finding(
            "cluster.mixed_memory",
            "warn",
            f"{size(minimum)} of memory on the smallest of these, {size(maximum)} elsewhere: model and batch must fit "
            "the smallest, or its ranks are killed",
            _LEAVE_OUT,
            small,
        )


def kernels(cluster: ClusterContext) -> Iterator[Finding]:
    """Say that hosts run different kernels."""
    by_kernel = groups(cluster.runnable, lambda node: node.facts.system.kernel)
    if len(by_kernel) > 1:
        usual, others, names = odd_ones(by_kernel)
        yield Finding(
            "cluster.mixed_kernels",
            "info",
            f"Kernel {few([kernel[:30] for kernel in others], 2)}, but {usual[:30]} on the other hosts: harmless, "
            "but the first suspect if these hosts are slower",
            "update the hosts together",
            names,
        )


def jobs(cluster: ClusterContext) -> Iterator[Finding]:
    """Warn if some hosts are in no job of the scheduler while others are, or if they are in different jobs."""
    by_job = groups(
        cluster.runnable,
        lambda node: node.facts.batch.job or ("" if node.facts.has_finished("kernel") else None),
    )
    if len(by_job) < 2:
        return
    usual, _, names = odd_ones(by_job)
    count = len(cluster.nodes)
    outside = tuple(by_job.get("", ()))
    yield Finding(
        "cluster.mixed_jobs",
        "warn",
        "These hosts are in no job of the scheduler, but the others are: the scheduler may end their ranks or share "
        "their cores"
        if outside
        else f"These hosts are in another job than the others ({usual[:20]}): each job ends at its own time, and the "
        "run ends with the first one",
        f"allocate all hosts in one job (salloc -N {count}, qsub -I -l select={count}), and run ipexctl inside it",
        outside or names,
    )


def users(cluster: ClusterContext) -> Iterator[Finding]:
    """Say that ipexctl uses different accounts on the hosts."""
    by_user = groups(cluster.nodes, lambda node: node.facts.account.user)
    if len(by_user) > 1:
        usual, others, names = odd_ones(by_user)
        yield Finding(
            "cluster.users_differ",
            "info",
            f"The account is {few([user[:20] for user in others], 3)}, but {usual[:20]} on the other hosts: homes and "
            "permissions may differ",
            "nothing to do if this is intended; else user@host in the hostfile, or --user",
            names,
        )


RULES: Final[tuple[ClusterRule, ...]] = (
    same_machine, same_hostname, arch, tiers, cores, numa, memory, kernels, jobs, users,
)  # fmt: skip
