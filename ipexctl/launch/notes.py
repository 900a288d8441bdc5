"""Makes the notes of a plan and the reasons for its choices. Pure.

A note says what the user should know or decide before the run: crowded cores, idle hosts, hosts that differ. A choice
explains the plan and needs no action, so `run` prints it only with -v, and --dry-run always.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ipexctl.facts.software import GLOO_MENDED, has_gloo_overflow
from ipexctl.hosts.nodeset import fold
from ipexctl.launch import allreduce, comm_env, fp32_math, hub_settings, memory, threads
from ipexctl.launch.context import LaunchContext, NodeLayout
from ipexctl.launch.mpi import LauncherProgram, lone_ranks_note, started_by
from ipexctl.launch.overrides import has_no_workers
from ipexctl.launch.rank_distribution import RankDistribution
from ipexctl.launch.stated_backend import stated_note
from ipexctl.text import counted


def plan_choices(context: LaunchContext, distribution: RankDistribution, program: LauncherProgram) -> tuple[str, ...]:
    """Reasons for what ipexctl chose by itself."""
    choices = [f"ranks on each host: {distribution.why}"]
    if program.of_env:
        choices.append(f"{started_by(program.flavor)}: {program.why}")
    if context.backend_reason:
        choices.append(f"backend {context.backend}: {context.backend_reason}")
    if (text := allreduce.choice_text(context)) is not None:
        choices.append(text)
    if (text := allreduce.wire_text(context)) is not None:
        choices.append(text)
    torch = context.gathered.env.packages.get("torch")
    if torch and context.backend == "gloo" and not context.alone and has_gloo_overflow(torch):
        choices.append(
            f"gloo of torch {torch}: anyone who reaches a rank's port can write into the rank, until torch "
            f"{'{}.{}'.format(*GLOO_MENDED)}; ipexctl doctor shows whether the ports are open to other networks"
        )
    taking_turns = [node.name for node in context.nodes if threads.by_turns(context, node)]
    if taking_turns:
        choices.append(
            f"ranks on {fold(taking_turns)} have one core each: their threads take turns (SCHED_BATCH), because "
            "each message of gloo would interrupt the thread that computes"
        )
    return tuple(choices)


def plan_notes(context: LaunchContext, distribution: RankDistribution, program: LauncherProgram) -> tuple[str, ...]:
    gathered = context.gathered
    no_workers = has_no_workers(gathered)
    stated = stated_note(gathered, context.backend, world_size=context.world_size, no_workers=no_workers)
    lone = lone_ranks_note(gathered, program, context.world_size)
    notes = [*filter(None, (stated, lone)), *distribution.notes]
    if not program.of_env:
        notes.append(f"{started_by(program.flavor)} ({program.path}): {program.why}")
    if context.backend == "mpi" and not context.backend_reason and context.gathered.env.mpi_backend is None:
        notes.append("backend mpi: whether this torch was built with MPI shows only when the ranks start")
    if context.bound_by_mpi:
        notes.append("Intel MPI binds the ranks to cores, by your I_MPI_PIN variables; --bind cores has ipexctl do it")
    notes += threads.missing_libraries(context)
    if distribution.by_default:
        notes += _more_than_sockets(context)
    notes += allreduce.notes(context)
    notes += fp32_math.notes(context)
    notes += memory.notes(context)
    notes += hub_settings.notes(context)
    return (*notes, *_crowded(context), *_straddling(context), *_unequal(context), *comm_env.notes(context))


def _more_than_sockets(context: LaunchContext) -> Iterator[str]:
    """Sub-NUMA clustering makes several ranks per socket, each with its own model and batch."""
    ranks, sockets = context.nodes[0].count, [_sockets(node) for node in context.nodes]
    least = min(sockets)
    if not least or ranks <= least:
        return
    yield (
        f"{ranks} ranks on each host, one for each NUMA node: {ranks} copies of model and optimizer in its memory, and "
        f"a global batch of {context.world_size} x the per-device batch; one for each socket: --ppn {least}"
    )


def _sockets(node: NodeLayout) -> int:
    """0 if unknown."""
    return len({core.socket for core in node.cores.cores if core.socket is not None})


def _straddling(context: LaunchContext) -> Iterator[str]:
    """Notes on ranks with cores of two sockets, or of NUMA nodes that they share with other ranks."""
    hosts: defaultdict[str, list[str]] = defaultdict(list)
    for node in context.nodes:
        if node.binding.crowded or context.gathered.spec.bind not in ("auto", "cores"):
            continue
        place = {core.cpu: (core.socket, core.node) for core in node.cores.cores}
        areas = [{place[cpu] for cpu in (*slot.cores, *slot.workers) if cpu in place} for slot in node.binding.slots]
        several = [at for at, area in enumerate(areas) if len(area) > 1]
        split = [at for at in several if _is_split(areas, at)]
        if split:
            numa = len(set(place.values()))
            ranks = fold(str(node.first + at) for at in split).strip("[]")
            hosts[
                f"rank{'s' * (len(split) > 1)} {ranks} on {{}}: cores of several NUMA nodes, and memory of the far "
                f"ones is slower; --ppn {numa} gives each NUMA node a rank"
            ].append(node.name)
    for text, names in hosts.items():
        yield text.format(fold(names))


def _is_split(areas: Sequence[set[tuple[int | None, int | None]]], at: int) -> bool:
    """True if the rank spans two sockets, or a NUMA node that another rank also uses."""
    others = (area for other, area in enumerate(areas) if other != at)
    return len({socket for socket, _ in areas[at]}) > 1 or any(areas[at] & area for area in others)


def _crowded(context: LaunchContext) -> Iterator[str]:
    """One line for all hosts with the same problem."""
    bind, omp = context.gathered.spec.bind, context.omp
    hosts: defaultdict[str, list[str]] = defaultdict(list)
    for node in context.nodes:
        cores, binding = node.cores, node.binding
        have = counted(cores.count, "core")
        if binding.crowded:
            hosts[f"more ranks than cores on {{}}: {node.count} ranks share {have} and wait for one another"].append(
                node.name
            )
        elif omp is not None and (omp + binding.workers) * node.count > cores.count:
            hosts[f"more threads than cores on {{}}: {node.count} x {omp} on {have}"].append(node.name)
        elif _overlap(node):
            hosts[f"ranks on {{}} share cores, by --bind {bind}"].append(node.name)
        if cores.left_out:
            text = f"{{}}: {cores.left_out} E-cores are not used: a rank that waits for one makes all wait"
            hosts[text].append(node.name)
    for text, names in hosts.items():
        yield text.format(fold(names))
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
