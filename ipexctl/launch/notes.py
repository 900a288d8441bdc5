"""The notes of a plan: choices with their reasons, crowded cores, idle hosts, unequal hosts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.hosts.nodeset import fold
from ipexctl.launch import comm_env, threads
from ipexctl.launch.mpi import NAMES, Launcher
from ipexctl.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.launch.context import LaunchContext, NodeLayout
    from ipexctl.launch.rank_distribution import RankDistribution


def plan_notes(context: LaunchContext, distribution: RankDistribution, launcher: Launcher) -> tuple[str, ...]:
    notes = [f"ranks on each host: {distribution.why}", *distribution.notes]
    starter = f"started by {NAMES[launcher.flavor]}" if launcher.flavor != "none" else "started directly"
    if not launcher.of_env:
        starter += f" ({launcher.path})"
    notes.append(f"{starter}: {launcher.why}")
    if context.backend_reason:
        notes.append(f"backend {context.backend}: {context.backend_reason}")
    elif context.backend == "mpi" and context.request.env.mpi_backend is None:
        notes.append("backend mpi: whether this torch was built with MPI shows only when the ranks start")
    if context.bound_by_mpi:
        notes.append("Intel MPI binds the ranks to cores, by your I_MPI_PIN variables; --bind cores has ipexctl do it")
    taking_turns = [node.name for node in context.nodes if threads.by_turns(context, node)]
    if taking_turns:
        notes.append(
            f"ranks on {fold(taking_turns)} have one core each: their threads take turns (SCHED_BATCH), else every "
            "message of gloo interrupts the thread that computes"
        )
    return (*notes, *_crowded(context), *_unequal(context), *comm_env.notes(context))


def _crowded(context: LaunchContext) -> Iterator[str]:
    omp = context.omp
    for node in context.nodes:
        cores = node.cores
        have = counted(cores.count, "core")
        binding = node.binding
        if binding.crowded:
            yield f"more ranks than cores on {node.name}: {node.count} ranks share {have} and wait for one another"
        elif omp is not None and (omp + binding.workers) * node.count > cores.count:
            yield f"more threads than cores on {node.name}: {node.count} x {omp} on {have}"
        elif _overlap(node):
            yield f"ranks on {node.name} share cores, by --bind {context.request.options.bind}"
        if cores.left_out:
            yield f"{node.name}: {cores.left_out} E-cores are not used: a rank that waits for one makes all wait"
    limited = [node.name for node in context.nodes if node.cores.limited]
    if limited:
        yield (
            f"the cgroup of {fold(limited)} grants less CPU time than there are cores: each rank may use a whole block "
            "of cores, because other containers on the machine may use the same cores"
        )


def _overlap(node: NodeLayout) -> bool:
    used = [core for slot in node.binding.slots for core in slot.cores]
    return len(used) != len(set(used))


def _unequal(context: LaunchContext) -> Iterator[str]:
    by_threads: dict[int, list[str]] = {}
    for node in context.nodes:
        by_threads.setdefault(node.binding.threads, []).append(node.name)
    if len(by_threads) > 1 and context.omp is None:
        fewest, most = min(by_threads), max(by_threads)
        yield (
            f"ranks on {fold(by_threads[fewest])} have {counted(fewest, 'thread')}, "
            f"on {fold(by_threads[most])} {most}: the slowest sets the pace"
        )
    machines: dict[str, list[str]] = {}
    for node in context.nodes:
        if node.facts.machine:
            machines.setdefault(node.facts.machine, []).append(node.name)
    for names in machines.values():
        if len(names) > 1:
            yield f"{fold(names)} look like one machine under several names: their ranks would share its cores"
