"""Make the plan of a run and its notes, or the reason why there is no plan: `PLAN_STEPS`, in order. Nothing here reads
a file or contacts a host.

The rules are in the modules that this one calls. A note says what the user should know or decide before the run; a
choice only explains the plan, so `run` prints choices only with -v.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ipexctl.errors import Refusal
from ipexctl.facts.cpu import CpuList
from ipexctl.facts.software import GLOO_MENDED, has_gloo_overflow
from ipexctl.hosts.host import find_leaders, is_loopback
from ipexctl.hosts.nodeset import fold
from ipexctl.launch import (
    allreduce,
    comm_env,
    cpu_variables,
    hub_settings,
    mpirun,
    numa_notes,
    python_env,
    rank_distribution,
    rank_rules,
    training_memory,
)
from ipexctl.launch.mpirun import find_launcher, lone_ranks_note, started_by, title_of
from ipexctl.launch.other_runs import find_other_runs
from ipexctl.launch.overrides import (
    apply_overrides,
    check_addresses,
    choose_backend,
    given_settings,
    has_no_workers,
    is_bound_by_mpi,
    requested_number,
    requested_variables,
    stated_note,
    worker_count,
)
from ipexctl.launch.plan_draft import NodeLayout, PlanDraft
from ipexctl.launch.rank_distribution import ranks_on
from ipexctl.launch.rank_rules import choose_rank_options, hosts_without_bf16
from ipexctl.launch.run_context import RunContext
from ipexctl.launch.topology import bind, cores_of, cores_per_rank
from ipexctl.node.common.fix import Fix
from ipexctl.node.common.mpi import INTEL
from ipexctl.node.common.plan import (
    HostPlan,
    LauncherChoice,
    LaunchFile,
    OtherRun,
    Plan,
    PlannedProject,
    RankPlan,
    Setting,
)
from ipexctl.projects.dist_info import dist_info_files
from ipexctl.projects.layout import ProjectLayout
from ipexctl.projects.script_file import ProjectLocation
from ipexctl.text import format_count
from ipexctl.transports import launcher_of


def plan_launch(context: RunContext, run: str) -> Plan | Refusal:
    """Return the plan of the run with the ID `run`, or the first refusal."""
    draft = lay_out(context, run)
    if isinstance(draft, Refusal):
        return draft
    for part in PLAN_STEPS:
        plan = part(draft)
        if isinstance(plan, Refusal):
            return plan
        draft = replace(draft, plan=plan)
    return draft.plan


def lay_out(context: RunContext, run: str) -> PlanDraft | Refusal:
    """Decide what all parts of the plan depend on: ranks of each host, backend, launcher, and the cores of the
    ranks.
    """
    if (refusal := check_addresses(context)) is not None:
        return refusal
    asked = context.asked
    distribution = ranks_on(context.spec.hosts, context.facts, asked)
    if isinstance(distribution, Refusal):
        return distribution
    ranks_per_host = {
        host.name: count for host, count in zip(context.spec.hosts, distribution.counts, strict=True) if count
    }
    world_size = sum(ranks_per_host.values())
    share = min(cores_per_rank(context.facts[name].cpu, count) for name, count in ranks_per_host.items())
    choice = choose_backend(context, len(ranks_per_host), world_size, share)
    if isinstance(choice, Refusal):
        return choice
    backend, backend_reason = choice
    program = find_launcher(context, ranks_per_host, backend)
    if isinstance(program, Refusal):
        return program
    wanted = requested_variables(context)
    workers = worker_count(context, wanted, backend, world_size)
    by_mpi = is_bound_by_mpi(asked, wanted, program.flavor)
    nodes = _nodes(context, ranks_per_host, workers, wanted, bound_by_mpi=by_mpi)
    plan = Plan(run, context.home, context.hosts[0].name, asked, backend=backend, backend_reason=backend_reason)
    return PlanDraft(context, plan, nodes, workers, distribution, program, wanted, by_mpi)


# The parts of a plan


def _add_launcher(draft: PlanDraft) -> Plan:
    """Add what starts the ranks."""
    program, launcher = draft.program, launcher_of(draft.program.flavor)
    by_starters = draft.context.transport.uses_ssh and not draft.alone
    return draft.plan._replace(
        flavor=program.flavor,
        launcher=LauncherChoice(program.mode, program.reason, program.path),
        has_starters=by_starters if launcher is None else launcher.has_starters,
    )


def _add_environment(draft: PlanDraft) -> Plan:
    """Add the environment, and the command of the ranks."""
    context, env = draft.context, draft.context.env
    return draft.plan._replace(
        python=env.python,
        env=env.name,
        versions=env.packages,
        stack=env.stacks[0] if len(env.stacks) == 1 else None,
        candidates=env.stacks,
        python_version=env.version,
        setup=context.setup,
        project=_planned_project(context),
        command=_command(context, draft.nodes),
        cwd=context.home,
        local_rank=_local_rank_option(context.asked.local_rank, env.packages.get("torch", ""), context.spec.project),
    )


def _add_meeting(draft: PlanDraft) -> Plan:
    """Add where the ranks meet, and what is known about the hosts."""
    context, asked, wanted = draft.context, draft.context.asked, draft.wanted
    return draft.plan._replace(
        master_addr=wanted.get("MASTER_ADDR") or ("127.0.0.1" if draft.alone else draft.nodes[0].address),
        master_port=requested_number(wanted, "MASTER_PORT") or asked.master_port,
        first_world_size=asked.first_world_size or draft.world_size,
        job=context.job,
        stores=find_leaders(context.facts, lambda name: context.facts[name].store_of(name)),
        ends_at_logout=tuple(
            name for name, facts in context.facts.items() if facts.logind and facts.logind.kill_user_processes
        ),
    )


def _add_memory(draft: PlanDraft) -> Plan | Refusal:
    """Add the estimate of memory; refuse ranks that would not fit."""
    draft = draft.with_plan(memory=training_memory.estimate(draft))
    return rank_distribution.memory_refusal(draft) or draft.plan


def _add_hosts(draft: PlanDraft) -> Plan:
    """Add the ranks of each host, and the other runs there."""
    hosts = tuple(_host_plan(draft, node) for node in draft.nodes)
    return draft.plan._replace(hosts=hosts, other_runs=_other_runs(draft, hosts))


def _add_line(draft: PlanDraft) -> Plan | Refusal:
    """Add the command line of the launcher; refuse names that would break it."""
    return _check_names(draft) or draft.plan._replace(
        argv=mpirun.launcher_argv(draft), launcher_env=tuple(mpirun.launcher_env(draft))
    )


def _add_files(draft: PlanDraft) -> Plan:
    """Add the files of the run's directory."""
    files = (*mpirun.launcher_files(draft), *_own_files(draft.context.spec.project.layout))
    return draft.plan._replace(files=files)


def _add_texts(draft: PlanDraft) -> Plan:
    """Add the notes and the choices."""
    return draft.plan._replace(
        notes=tuple(text for rule in NOTES for text in rule(draft)),
        choices=tuple(text for rule in CHOICES for text in rule(draft)),
    )


def _own_files(layout: ProjectLayout) -> Iterator[LaunchFile]:
    """Yield the metadata of the project's own packages."""
    return (LaunchFile(name, 0o600, text, is_everywhere=True) for name, text in dist_info_files(layout))


def _planned_project(context: RunContext) -> PlannedProject:
    """Return what the hosts need to know about the project."""
    project = context.spec.project
    own = tuple(package.name for package in project.layout.own if package.name)
    paths = project.layout.paths_with(context.env.packages)
    return PlannedProject(str(project.root), own, paths, project.requirements.files)


def _local_rank_option(option: str, torch: str, project: ProjectLocation) -> str:
    """Return the option for the local rank as the script spells it, else as its torch does; empty if ranks get no
    option.

    torch 2 changed `--local_rank` to `--local-rank`, and many scripts accept only the old one.
    """
    text = (project.script.text if project.script is not None else "") or ""
    spelled = [name for name in ("--local_rank", "--local-rank") if name in text]
    is_old = torch.partition(".")[0] in ("0", "1")
    if not option or len(spelled) == 1:
        return option and spelled[0]
    return "--local_rank" if is_old else option


def _other_runs(draft: PlanDraft, hosts: tuple[HostPlan, ...]) -> tuple[OtherRun, ...]:
    """Return the other runs on node0 and the hosts with ranks. Ranks without binding may use any core."""
    planned = {
        host.name: CpuList.of(core for rank in host.ranks for core in (*rank.cores, *rank.ccl_cores))
        if all(rank.cores for rank in host.ranks)
        else None
        for host in hosts
    }
    context = draft.context
    runs_on_hosts = {name: context.facts[name].activity.live for name in (context.hosts[0].name, *planned)}
    return find_other_runs(runs_on_hosts, draft.plan.id, planned)


def _nodes(
    context: RunContext, ranks_per_host: dict[str, int], workers: int, wanted: Mapping[str, str], *, bound_by_mpi: bool
) -> tuple[NodeLayout, ...]:
    """Return the hosts with ranks: their addresses, cores and the binding of their ranks."""
    nodes: list[NodeLayout] = []
    first = 0
    asked = context.asked
    mode = "none" if bound_by_mpi else asked.bind
    # Workers that the user asks for get their cores, even if that leaves fewer than threads.
    keeps_workers = asked.ccl_workers is not None or "CCL_WORKER_COUNT" in wanted
    omp = 1 if keeps_workers else requested_number(wanted, "OMP_NUM_THREADS") or asked.omp or 1
    bind_workers = "CCL_WORKER_AFFINITY" not in wanted
    need = context.earlier_memory.size if context.earlier_memory else 0
    for host in context.spec.hosts:
        if host.name not in ranks_per_host:
            continue
        facts = context.facts[host.name]
        address = "127.0.0.1" if len(ranks_per_host) == 1 else context.addresses[host.name]
        word = address if is_loopback(host.name.lower()) else host.name
        if host is context.hosts[0] and ":" not in address:
            word = address  # hydra recognises its own machine by the address, and would use ssh for some names
        cores = cores_of(facts.cpu)
        ranks = ranks_per_host[host.name]
        binding = bind(cores, ranks, workers, mode, omp=omp, bind_workers=bind_workers, need=need)
        nic = facts.network.nic_with(address) if len(ranks_per_host) > 1 else None
        iface = nic.name if nic else None
        nodes.append(NodeLayout(host.name, facts, address, word, first, cores, binding, iface))
        first += ranks_per_host[host.name]
    return tuple(nodes)


def _check_names(draft: PlanDraft) -> Refusal | None:
    """Refuse names that break mpirun: hydra reads a rank count after a colon, Open MPI splits paths at spaces."""
    mpi = draft.mpi
    if mpi is None:
        return None
    if mpi.splits_at_spaces and not draft.alone and any(letter.isspace() for letter in draft.plan.rundir):
        return Refusal(
            f"{mpi.title} can't use {draft.plan.rundir}: it splits the path on spaces",
            f"--home DIR with a path without spaces, or --mpi {INTEL.flavor}",
        )
    ipv6 = [node for node in draft.nodes if ":" in node.word]
    if mpi.takes_ipv6 or not ipv6:
        return None
    return Refusal(
        f"mpirun can't use {ipv6[0].word}: it reads an IPv6 address in its list of hosts as a host and a count",
        "a name for that host in the hostfile, with internal=ADDRESS after it; or --iface with an IPv4 network",
        tuple(node.name for node in ipv6),
    )


def _settings(draft: PlanDraft) -> tuple[Setting, ...]:
    """Return the variables of the ranks: those of the plan, of an accelerate config and of the user, and removed
    ones.
    """
    planned = [setting for settings in SETTINGS for setting in settings(draft)]
    context = draft.context
    settings = apply_overrides(planned, given_settings(context), context.asked.exports)
    chosen = frozenset(setting.name for setting in settings)
    return (*settings, *python_env.leftover_variables(draft, chosen))


def _host_plan(draft: PlanDraft, node: NodeLayout) -> HostPlan:
    """Return the plan of one host."""
    omp = draft.omp or node.binding.threads
    takes_turns = cpu_variables.by_turns(draft, node)
    ranks = tuple(
        RankPlan(
            node.first + local_rank, local_rank, node.name, slot.cores, omp, slot.workers, slot.memory, takes_turns
        )
        for local_rank, slot in enumerate(node.binding.slots)
    )
    tier, cores = node.facts.cpu.tier, node.cores.count
    return HostPlan(node.name, node.address, node.word, ranks, node.iface, tier, cores, node.facts.hardware)


def _command(context: RunContext, nodes: Sequence[NodeLayout]) -> tuple[str, ...]:
    """Return the command of a rank, with Python in front unless it is another program."""
    asked, project = context.asked, context.spec.project
    command, spec = project.command, context.spec
    if hosts_without_bf16(nodes):
        command = (*command, *spec.without_bf16)
    if asked.kind == "command" and not project.entry:
        return (*asked.in_front, *command)
    module = ("-m",) if asked.kind == "module" else ()
    return (*asked.in_front, context.env.python, *asked.python_flags, *module, *command)


def _launcher_choice(draft: PlanDraft) -> Iterator[str]:
    """Explain the launcher, if it came with the environment or is no MPI; `_launcher_notes` has the others."""
    program = draft.program
    if program.of_env:
        yield f"{started_by(program.flavor)}: {program.reason}"


def _backend_choices(draft: PlanDraft) -> Iterator[str]:
    """Explain the backend and how gradients are added up."""
    if draft.plan.backend_reason:
        yield f"backend {draft.plan.backend}: {draft.plan.backend_reason}"
    yield from filter(None, (allreduce.choice_text(draft), allreduce.wire_text(draft)))


def _memory_choice(draft: PlanDraft) -> Iterator[str]:
    """Describe the estimate of memory."""
    if draft.plan.memory is not None:
        yield training_memory.describe(draft.plan.memory)


def _open_ports_choice(draft: PlanDraft) -> Iterator[str]:
    """Warn of a torch in which ports of ranks can be attacked from other networks."""
    torch = draft.context.env.packages.get("torch")
    if torch and draft.plan.backend == "gloo" and not draft.alone and has_gloo_overflow(torch):
        yield Fix(
            f"gloo of torch {torch}: anyone who reaches a rank's port can write into the rank, until "
            f"torch {'{}.{}'.format(*GLOO_MENDED)}; `ipexctl doctor` shows whether the ports are open "
            "to other networks"
        )


def _turns_choice(draft: PlanDraft) -> Iterator[str]:
    """Explain that threads of ranks on a single core take turns."""
    taking_turns = [node.name for node in draft.nodes if cpu_variables.by_turns(draft, node)]
    if taking_turns:
        yield (
            f"ranks on {fold(taking_turns)} have one core each: their threads take turns (SCHED_BATCH), because "
            "each message of gloo would interrupt the thread that computes"
        )


def _backend_notes(draft: PlanDraft) -> Iterator[str]:
    """Warn of a backend that the script or an accelerate config states and does not get, and of ranks that do not find
    each other.
    """
    context = draft.context
    no_workers = has_no_workers(context)
    stated = stated_note(context, draft.plan.backend, world_size=draft.world_size, no_workers=no_workers)
    yield from filter(None, (stated, lone_ranks_note(context, draft.program, draft.world_size)))


def _launcher_notes(draft: PlanDraft) -> Iterator[str]:
    """Say which mpirun of the hosts starts the ranks; warn of what shows only when they start, and of binding by the
    MPI.
    """
    program = draft.program
    if not program.of_env:
        yield f"{started_by(program.flavor)} ({program.path}): {program.reason}"
    if draft.plan.backend == "mpi" and not draft.plan.backend_reason and draft.context.env.mpi_backend is None:
        yield "backend mpi: whether this torch was built with MPI shows only when the ranks start"
    if draft.bound_by_mpi:
        by = f"by your {draft.mpi.placements[0]} variables" if draft.mpi is not None else ""
        yield f"{title_of(program.flavor)} binds the ranks to cores, {by}; --bind cores has ipexctl do it"


def _bf16_notes(draft: PlanDraft) -> Iterator[str]:
    """Say which arguments were added because a host has no bf16 instructions."""
    added = draft.context.spec.without_bf16
    if added and (hosts := hosts_without_bf16(draft.nodes)):
        yield f"{shlex.join(added)} is added: {fold(hosts)} has no bf16 instructions, so autocast saves no time"


def _crowded(draft: PlanDraft) -> Iterator[str]:
    """Warn of ranks or threads that share cores, of E-cores that are not used, and of a quota."""
    bind, omp = draft.context.asked.bind, draft.omp
    hosts: defaultdict[str, list[str]] = defaultdict(list)
    for node in draft.nodes:
        cores, binding = node.cores, node.binding
        core_count = format_count(cores.count, "core")
        if binding.crowded:
            hosts[
                f"more ranks than cores on {{}}: {node.count} ranks share {core_count} and wait for one another"
            ].append(node.name)
        elif omp is not None and (omp + binding.workers) * node.count > cores.count:
            hosts[f"more threads than cores on {{}}: {node.count} x {omp} on {core_count}"].append(node.name)
        elif _overlap(node):
            hosts[f"ranks on {{}} share cores, by --bind {bind}"].append(node.name)
        if cores.left_out:
            text = f"{{}}: {cores.left_out} E-cores are not used: a rank that waits for one makes all wait"
            hosts[text].append(node.name)
    for text, names in hosts.items():
        yield text.format(fold(names))
    limited = [node.name for node in draft.nodes if node.cores.limited]
    if limited:
        yield (
            f"the cgroup of {fold(limited)} grants less CPU time than there are cores: each rank may use a whole block "
            "of cores, because other containers on the machine may use the same cores"
        )


def _overlap(node: NodeLayout) -> bool:
    """True if two ranks of the node have a core in common."""
    used = [core for slot in node.binding.slots for core in slot.cores]
    return len(used) != len(set(used))


def _unequal(draft: PlanDraft) -> Iterator[str]:
    """Warn of hosts with fewer threads a rank than others, and of one machine under several names."""
    by_threads: dict[int, list[str]] = {}
    for node in draft.nodes:
        by_threads.setdefault(node.binding.threads, []).append(node.name)
    if len(by_threads) > 1 and draft.omp is None:
        fewest, maximum = min(by_threads), max(by_threads)
        yield (
            f"ranks on {fold(by_threads[fewest])} have {format_count(fewest, 'thread')}, "
            f"on {fold(by_threads[maximum])} {maximum}: the slowest sets the pace"
        )
    machines: dict[str, list[str]] = {}
    for node in draft.nodes:
        if node.facts.machine:
            machines.setdefault(node.facts.machine, []).append(node.name)
    for names in machines.values():
        if len(names) > 1:
            yield f"{fold(names)} look like one machine under several names: their ranks would share its cores"


PLAN_STEPS: Final[tuple[Callable[[PlanDraft], Plan | Refusal], ...]] = (
    _add_launcher,
    _add_environment,
    _add_meeting,
    choose_rank_options,
    _add_memory,
    _add_hosts,
    _add_line,
    lambda context: context.plan._replace(settings=_settings(context)),
    _add_files,
    _add_texts,
)
"""Each returns the plan so far with fields of its own, or why there can be no run."""
SETTINGS: Final[tuple[Callable[[PlanDraft], Iterable[Setting]], ...]] = (
    python_env.settings,
    cpu_variables.settings,
    comm_env.settings,
    rank_rules.settings,
    hub_settings.settings,
)
"""What yields the variables of the ranks, before the user's own are added."""
Texts = tuple[Callable[[PlanDraft], Iterable[str]], ...]
CHOICES: Final[Texts] = (
    lambda context: (f"ranks on each host: {context.distribution.reason}",),
    numa_notes.choices,
    _launcher_choice,
    _backend_choices,
    _memory_choice,
    _open_ports_choice,
    _turns_choice,
)
"""Texts that explain the plan; `run -v` prints them."""
NOTES: Final[Texts] = (
    _backend_notes,
    lambda context: context.distribution.notes,
    _launcher_notes,
    cpu_variables.missing_libraries,
    lambda context: numa_notes.more_than_sockets(context) if context.distribution.by_default else (),
    rank_rules.notes,
    _bf16_notes,
    rank_distribution.memory_notes,
    rank_distribution.tasks_notes,
    hub_settings.notes,
    _crowded,
    numa_notes.notes,
    _unequal,
    comm_env.notes,
)
"""What the user should know or decide before the run."""
