"""What a person should know of a plan beside its numbers: crowding, idle hosts, uneven shares. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipexctl.hosts.nodeset import fold
from ipexctl.launch import transport
from ipexctl.launch.mpi import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.launch.mpi import Launcher
    from ipexctl.launch.scene import Scene
    from ipexctl.launch.share import Share


def remarks(scene: Scene, share: Share, launcher: Launcher) -> tuple[str, ...]:
    env = scene.request.env
    said = [f"ranks on each host: {share.why}", *share.notes]
    said.append(f"started by {NAMES[launcher.flavor]}: {launcher.why}")
    if scene.request.options.backend == "auto":
        why = "the environment has oneCCL bindings" if env.ccl else "the environment has no oneCCL bindings"
        said.append(f"backend {scene.backend}: {why}")
    elif scene.backend == "mpi" and env.mpi_backend is None:
        said.append("backend mpi: whether this torch was built with MPI is seen only when the ranks start")
    return (*said, *_crowding(scene), *_unlike(scene), *transport.notes(scene))


def _crowding(scene: Scene) -> Iterator[str]:
    asked = scene.request.options.omp
    for member in scene.members:
        cores = member.cores
        have = f"{cores.count} {'core' if cores.count == 1 else 'cores'}"
        binding = member.binding
        if binding.crowded:
            yield f"more ranks than cores on {member.name}: {member.count} ranks share {have}, and wait for one another"
        elif asked is not None and asked * member.count > cores.count:
            yield f"more threads than cores on {member.name}: {member.count} x {asked} on {have}"
        elif _overlap(scene, member.name):
            yield f"ranks on {member.name} share cores, as --bind {scene.request.options.bind} says"
        if cores.left_out:
            yield f"{member.name}: {cores.left_out} E-cores take no part; a rank that waits for one makes all wait"
    limited = [member.name for member in scene.members if member.cores.limited]
    if limited:
        yield (
            f"the cgroup of {fold(limited)} grants less time than there are cores: ranks are bound to whole blocks "
            "of them, as others on the machine would choose the same ones"
        )


def _overlap(scene: Scene, host: str) -> bool:
    seats = next(member.binding.seats for member in scene.members if member.name == host)
    everyones = [core for seat in seats for core in seat.cores]
    return len(everyones) != len(set(everyones))


def _unlike(scene: Scene) -> Iterator[str]:
    by_threads: dict[int, list[str]] = {}
    for member in scene.members:
        by_threads.setdefault(member.binding.threads, []).append(member.name)
    if len(by_threads) > 1 and scene.request.options.omp is None:
        fewest, most = min(by_threads), max(by_threads)
        yield (
            f"ranks on {fold(by_threads[fewest])} have {fewest} {'thread' if fewest == 1 else 'threads'}, "
            f"on {fold(by_threads[most])} {most}: the slowest sets the pace"
        )
    machines: dict[str, list[str]] = {}
    for member in scene.members:
        if member.facts.machine:
            machines.setdefault(member.facts.machine, []).append(member.name)
    for names in machines.values():
        if len(names) > 1:
            yield f"{fold(names)} look like one machine under several names: their ranks would share its cores"
