"""Rules over several hosts: whether they are different machines, and how alike those are. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.doctor.cluster_context import groups, odd_ones, span
from ipexctl.doctor.finding import Finding
from ipexctl.doctor.host_context import few, quoted_output, size, usable_cores
from ipexctl.facts.cpu import TIERS, X86
from ipexctl.launch.topology import dtype, numa_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ipexctl.doctor.cluster_context import Cluster, Rule

IDS: Final[Mapping[str, str]] = {
    "cluster.same_machine": "several names lead to one machine",
    "cluster.same_hostname": "different machines call themselves the same",
    "cluster.mixed_arch": "different kinds of processors",
    "cluster.mixed_tiers": "different instruction sets: the weakest decides",
    "cluster.mixed_cores": "different numbers of cores: the smallest host sets the pace",
    "cluster.mixed_numa": "different numbers of NUMA nodes",
    "cluster.mixed_memory": "different amounts of memory: the smallest decides",
    "cluster.mixed_kernels": "different kernels",
    "cluster.mixed_jobs": "not all hosts are in the same job of the scheduler",
    "cluster.users_differ": "different accounts",
}

_LEAVE_OUT: Final = "train without them (--limit '!NAME,!NAME'), or accept it"


def same_machine(cluster: Cluster) -> Iterator[Finding]:
    """Where interfaces weren't heard, containers on one kernel can't be told apart, so nothing is said."""
    found = groups(cluster.nodes, lambda node: node.facts.machine if quoted_output(node.facts, "network") else None)
    for names in found.values():
        if len(names) > 1:
            yield Finding(
                "cluster.same_machine",
                "warn",
                f"{len(names)} names lead to one machine: their ranks share its cores and memory, and are "
                "slower than planned",
                f"keep one of the names in the hostfile; for more ranks there: NAME slots={len(names)}",
                tuple(names),
            )


def same_hostname(cluster: Cluster) -> Iterator[Finding]:
    """By that name MPI and oneCCL decide which ranks share a machine's memory."""
    found = groups(cluster.nodes, lambda node: node.facts.network.hostname)
    machines = {node.name: node.facts.machine for node in cluster.nodes}
    for hostname, names in found.items():
        known = {machines[name] for name in names}
        if len(names) > 1 and None not in known and len(known) > 1:
            yield Finding(
                "cluster.same_hostname",
                "warn",
                f"Different machines all call themselves {hostname[:40]}: MPI and oneCCL take them for one, look for "
                "shared memory, and hang",
                "as root, on each: hostnamectl set-hostname A-NAME-OF-ITS-OWN",
                tuple(names),
            )


def arch(cluster: Cluster) -> Iterator[Finding]:
    found = groups(cluster.nodes, lambda node: node.facts.cpu.arch)
    if len({"x86_64" if kind in X86 else kind for kind in found}) > 1:
        usual, others, names = odd_ones(found)
        yield Finding(
            "cluster.mixed_arch",
            "fail",
            f"{few(others)} here, {usual} on the others: one job needs one kind of processor, as libraries are built "
            "for it",
            "train on one kind at a time: --limit '!NAME,!NAME'",
            names,
        )


def tiers(cluster: Cluster) -> Iterator[Finding]:
    """A host without any tier has a finding of its own, and is no yardstick."""
    found = groups(cluster.runnable, lambda node: node.facts.cpu.tier)
    found.pop("unsupported", None)
    if len(found) < 2:
        return
    ordered = sorted(found, key=TIERS.index)
    weakest, best = ordered[0], ordered[-1]
    yield Finding(
        "cluster.mixed_tiers",
        "warn",
        f"{weakest} here, {best} elsewhere: every rank waits for these at each step, and all train in {dtype(ordered)}",
        _LEAVE_OUT,
        tuple(found[weakest]),
    )


def cores(cluster: Cluster) -> Iterator[Finding]:
    found = groups(cluster.runnable, lambda node: usable_cores(node.facts.cpu))
    if len(found) < 2:
        return
    most = max(found)
    smaller = sorted(count for count in found if count < most)
    yield Finding(
        "cluster.mixed_cores",
        "warn" if smaller[0] < 0.9 * most else "info",
        f"{span(smaller[0], smaller[-1])} usable cores here, {most} on the largest: with equal batches all wait for "
        "the smallest",
        f"{_LEAVE_OUT}; what holds cores back is said at each host",
        tuple(name for name in (m.name for m in cluster.runnable) for count in smaller if name in found[count]),
    )


def numa(cluster: Cluster) -> Iterator[Finding]:
    found = groups(cluster.runnable, lambda node: numa_nodes(node.facts.cpu) if node.facts.cpu.numa else None)
    if len(found) < 2:
        return
    usual, others, names = odd_ones(found)
    yield Finding(
        "cluster.mixed_numa",
        "info",
        f"NUMA nodes: {span(min(others), max(others))} here, {usual} on the others; ranks per host are those of the "
        f"smallest, {min(found)}",
        "nothing to do; --ppn gives another number, and the firmware's SNC or NPS setting makes them alike",
        names,
    )


def memory(cluster: Cluster) -> Iterator[Finding]:
    have = {m.name: usable for m in cluster.runnable if (usable := m.facts.memory.usable) is not None}
    most = max(have.values(), default=0)
    small = tuple(name for name, usable in have.items() if usable < 0.75 * most)
    if small:
        least = min(have[name] for name in small)
        yield Finding(
            "cluster.mixed_memory",
            "warn",
            f"{size(least)} of memory on the smallest of these, {size(most)} elsewhere: model and batch must fit the "
            "smallest, or its ranks are killed",
            _LEAVE_OUT,
            small,
        )


def kernels(cluster: Cluster) -> Iterator[Finding]:
    found = groups(cluster.runnable, lambda node: node.facts.system.kernel)
    if len(found) > 1:
        usual, others, names = odd_ones(found)
        yield Finding(
            "cluster.mixed_kernels",
            "info",
            f"Kernel {few([kernel[:30] for kernel in others], 2)} here, {usual[:30]} on the others: no harm by "
            "itself, but look here first if these are slower",
            "update the hosts together",
            names,
        )


def jobs(cluster: Cluster) -> Iterator[Finding]:
    found = groups(
        cluster.runnable,
        lambda node: node.facts.batch.job or ("" if quoted_output(node.facts, "kernel") else None),
    )
    if len(found) < 2:
        return
    usual, _, names = odd_ones(found)
    outside = tuple(found.get("", ()))
    yield Finding(
        "cluster.mixed_jobs",
        "warn",
        "These hosts are in no job of the scheduler and the others are: ranks here may be ended, or crowded out"
        if outside
        else f"These hosts are in another job than the others ({usual[:20]}): each ends at its own time, and the run "
        "with it",
        "ask for all hosts in one job (salloc -N HOSTS, qsub -l select=HOSTS), and call ipexctl inside it",
        outside or names,
    )


def users(cluster: Cluster) -> Iterator[Finding]:
    found = groups(cluster.nodes, lambda node: node.facts.account.user)
    if len(found) > 1:
        usual, others, names = odd_ones(found)
        yield Finding(
            "cluster.users_differ",
            "info",
            f"We are {few([user[:20] for user in others], 3)} here and {usual[:20]} on the others: homes and rights "
            "may differ",
            "nothing to do if meant so; else user@host in the hostfile, or --user",
            names,
        )


RULES: Final[tuple[Rule, ...]] = (
    same_machine, same_hostname, arch, tiers, cores, numa, memory, kernels, jobs, users,
)  # fmt: skip
