"""What a person should know of a plan beside its numbers: crowding, idle hosts, uneven shares. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.hosts.nodeset import fold
from ipexctl.launch import comm_env as transport
from ipexctl.launch.mpi import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.launch.context import LaunchContext
    from ipexctl.launch.mpi import Launcher
    from ipexctl.launch.rank_distribution import RankDistribution


def remarks(context: LaunchContext, share: RankDistribution, launcher: Launcher) -> tuple[str, ...]:
    env = context.request.env
    said = [f"ranks on each host: {share.why}", *share.notes]
    said.append(f"started by {NAMES[launcher.flavor]}: {launcher.why}")
    if context.request.options.backend == "auto":
        why = "the environment has oneCCL bindings" if env.ccl else "the environment has no oneCCL bindings"
        said.append(f"backend {context.backend}: {why}")
    elif context.backend == "mpi" and env.mpi_backend is None:
        said.append("backend mpi: whether this torch was built with MPI is seen only when the ranks start")
    return (*said, *_crowding(context), *_unlike(context), *transport.notes(context))


def _crowding(context: LaunchContext) -> Iterator[str]:
    asked = context.request.options.omp
    for node in context.nodes:
        cores = node.cores
        have = f"{cores.count} {'core' if cores.count == 1 else 'cores'}"
        binding = node.binding
        if binding.crowded:
            yield f"more ranks than cores on {node.name}: {node.count} ranks share {have}, and wait for one another"
        elif asked is not None and asked * node.count > cores.count:
            yield f"more threads than cores on {node.name}: {node.count} x {asked} on {have}"
        elif _overlap(context, node.name):
            yield f"ranks on {node.name} share cores, as --bind {context.request.options.bind} says"
        if cores.left_out:
            yield f"{node.name}: {cores.left_out} E-cores take no part; a rank that waits for one makes all wait"
    limited = [node.name for node in context.nodes if node.cores.limited]
    if limited:
        yield (
            f"the cgroup of {fold(limited)} grants less time than there are cores: ranks are bound to whole blocks "
            "of them, as others on the machine would choose the same ones"
        )


def _overlap(context: LaunchContext, host: str) -> bool:
    seats = next(node.binding.seats for node in context.nodes if node.name == host)
    everyones = [core for slot in seats for core in slot.cores]
    return len(everyones) != len(set(everyones))


def _unlike(context: LaunchContext) -> Iterator[str]:
    by_threads: dict[int, list[str]] = {}
    for node in context.nodes:
        by_threads.setdefault(node.binding.threads, []).append(node.name)
    if len(by_threads) > 1 and context.request.options.omp is None:
        fewest, most = min(by_threads), max(by_threads)
        yield (
            f"ranks on {fold(by_threads[fewest])} have {fewest} {'thread' if fewest == 1 else 'threads'}, "
            f"on {fold(by_threads[most])} {most}: the slowest sets the pace"
        )
    machines: dict[str, list[str]] = {}
    for node in context.nodes:
        if node.facts.machine:
            machines.setdefault(node.facts.machine, []).append(node.name)
    for names in machines.values():
        if len(names) > 1:
            yield f"{fold(names)} look like one machine under several names: their ranks would share its cores"
