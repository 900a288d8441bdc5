"""Makes the plan of a run, or the reason why there is none. Pure; the rules are in the modules it calls.

It decides in this order, and each decision uses the earlier ones: ranks of each host (`rank_distribution`), backend
(`overrides`), launcher (`mpi`), oneCCL's workers, cores (`binding`), all-reduce and wire format (`allreduce`), host
names for mpirun, variables (`python_env`, `threads`, `comm_env`), and last the user's variables. The first refusal ends
it. `notes` tells the user about the plan.
"""

from __future__ import annotations

from collections.abc import Mapping

from ipexctl.errors import Refusal
from ipexctl.facts.cpu import CpuList
from ipexctl.hosts.host import find_leaders
from ipexctl.launch import allreduce, comm_env, fp32_math, hub_settings, memory, mpi_commands, python_env, threads
from ipexctl.launch.binding import bind
from ipexctl.launch.context import LaunchContext, NodeLayout
from ipexctl.launch.mpi import find_launcher
from ipexctl.launch.notes import plan_choices, plan_notes
from ipexctl.launch.other_runs import find_other_runs
from ipexctl.launch.overrides import (
    apply_overrides,
    check_addresses,
    choose_backend,
    given_settings,
    is_bound_by_mpi,
    requested_number,
    requested_variables,
    worker_count,
)
from ipexctl.launch.rank_distribution import ranks_on
from ipexctl.launch.request import Gathered
from ipexctl.launch.topology import cores_of, dtype
from ipexctl.node.common.plan import HostPlan, LauncherChoice, OtherRun, Plan, RankPlan, Setting
from ipexctl.spec import asked_of
from ipexctl.transports import launcher_of


def plan_launch(gathered: Gathered, run: str) -> Plan | Refusal:
    if (refusal := check_addresses(gathered)) is not None:
        return refusal
    spec = gathered.spec
    distribution = ranks_on(gathered.first_hosts, gathered.facts, spec)
    if isinstance(distribution, Refusal):
        return distribution
    counts = {host.name: count for host, count in zip(gathered.first_hosts, distribution.counts, strict=True) if count}
    world_size = sum(counts.values())
    cores_per_rank = min(cores_of(gathered.facts[name].cpu).count // count for name, count in counts.items())
    choice = choose_backend(gathered, len(counts), world_size, cores_per_rank)
    if isinstance(choice, Refusal):
        return choice
    backend, backend_reason = choice
    program = find_launcher(gathered, counts, backend)
    if isinstance(program, Refusal):
        return program
    wanted = requested_variables(gathered)
    workers = worker_count(gathered, wanted, backend, world_size)
    by_mpi = is_bound_by_mpi(spec, wanted, program.flavor)
    nodes = _nodes(gathered, counts, workers, wanted, bound_by_mpi=by_mpi)
    adding = allreduce.choose_allreduce(gathered, nodes, backend)
    wire = allreduce.choose_wire(gathered, nodes, backend, adding)
    context = LaunchContext(
        gathered,
        run,
        nodes,
        backend,
        backend_reason,
        program.flavor,
        workers,
        wanted,
        by_mpi,
        adding,
        wire,
        fp32_math.choose(gathered, nodes),
    )
    if (refusal := _check_names(context) or memory.refusal(context) or hub_settings.refusal(context)) is not None:
        return refusal
    hosts = tuple(_host_plan(context, node) for node in nodes)
    own_address = "127.0.0.1" if context.alone else nodes[0].address
    launcher = launcher_of(program.flavor)
    return Plan(
        id=run,
        home=gathered.home,
        node0=gathered.hosts[0].name,
        asked=asked_of(spec),
        flavor=program.flavor,
        launcher=LauncherChoice(program.mode, program.why, program.path),
        argv=mpi_commands.argv(context, program),
        launcher_env=tuple(mpi_commands.launcher_env(context, program)),
        hosts=hosts,
        settings=_settings(context),
        master_addr=wanted.get("MASTER_ADDR") or own_address,
        master_port=requested_number(wanted, "MASTER_PORT") or spec.master_port,
        backend=backend,
        backend_reason=backend_reason,
        dtype_hint=dtype(node.facts.cpu.tier or "unsupported" for node in nodes),
        python=gathered.env.python,
        env=gathered.env.name,
        stack=gathered.env.stacks[0] if len(gathered.env.stacks) == 1 else None,
        candidates=gathered.env.stacks,
        command=_command(gathered),
        cwd=gathered.home,
        files=mpi_commands.files(context, hosts),
        has_starters=launcher is not None and launcher.has_starters,
        stores=find_leaders(gathered.facts, lambda name: gathered.facts[name].store_of(name)),
        setup=gathered.setup,
        job=gathered.job,
        python_version=gathered.env.version,
        local_rank=_local_rank_option(spec.local_rank, gathered.env.packages.get("torch", "")),
        first_world_size=spec.first_world_size or world_size,
        ends_at_logout=tuple(
            name for name, facts in gathered.facts.items() if facts.logind and facts.logind.kill_user_processes
        ),
        notes=plan_notes(context, distribution, program),
        choices=plan_choices(context, distribution, program),
        allreduce=context.allreduce,
        wire=context.wire,
        fp32_math=context.fp32_math,
        other_runs=_other_runs(context, hosts),
    )


def _local_rank_option(option: str, torch: str) -> str:
    """Spell the option as that version of torch.distributed.launch does."""
    is_old = torch.partition(".")[0] in ("0", "1")
    return "--local_rank" if option and is_old else option


def _other_runs(context: LaunchContext, hosts: tuple[HostPlan, ...]) -> tuple[OtherRun, ...]:
    """Other runs on the hosts with ranks, and on node0."""
    planned = {
        host.name: CpuList.of(core for rank in host.ranks for core in (*rank.cores, *rank.ccl_cores))
        if all(rank.cores for rank in host.ranks)
        else None
        for host in hosts
    }
    gathered = context.gathered
    looks = {name: gathered.facts[name].activity.live for name in (gathered.hosts[0].name, *planned)}
    return find_other_runs(looks, context.run, planned)


def _nodes(
    gathered: Gathered, counts: dict[str, int], workers: int, wanted: Mapping[str, str], *, bound_by_mpi: bool
) -> tuple[NodeLayout, ...]:
    nodes: list[NodeLayout] = []
    first = 0
    spec = gathered.spec
    mode = "none" if bound_by_mpi else spec.bind
    # Workers that the user asks for get their cores, even if that leaves fewer than threads.
    keeps_workers = spec.ccl_workers is not None or "CCL_WORKER_COUNT" in wanted
    omp = 1 if keeps_workers else requested_number(wanted, "OMP_NUM_THREADS") or spec.omp or 1
    bind_workers = "CCL_WORKER_AFFINITY" not in wanted
    for host in gathered.first_hosts:
        if host.name not in counts:
            continue
        facts = gathered.facts[host.name]
        address = "127.0.0.1" if len(counts) == 1 else gathered.addresses[host.name]
        ssh_name = gathered.ssh_names.get(host.name, host.name)
        if (len(counts) == 1 or host is gathered.hosts[0]) and ":" not in address:
            ssh_name = address  # hydra recognises its own machine by the address, and would use ssh for some names
        cores = cores_of(facts.cpu)
        binding = bind(cores, counts[host.name], workers, mode, omp=omp, bind_workers=bind_workers)
        nic = facts.network.nic_with(address) if len(counts) > 1 else None
        iface = nic.name if nic else None
        nodes.append(NodeLayout(host.name, facts, address, ssh_name, first, cores, binding, iface))
        first += counts[host.name]
    return tuple(nodes)


def _check_names(context: LaunchContext) -> Refusal | None:
    """Refuse names that break mpirun: hydra reads a rank count after a colon, Open MPI splits paths on spaces."""
    if context.flavor == "openmpi":
        gathered = context.gathered
        config = context.rundir if gathered.transport.remote_shell else gathered.ssh_config or ""
        if context.alone or not any(letter.isspace() for letter in config):
            return None
        return Refusal(
            f"Open MPI can't use {config}: it splits the path on spaces",
            "--home DIR with a path without spaces, or --mpi intel",
        )
    ipv6 = [node for node in context.nodes if ":" in node.ssh_name]
    if not ipv6 or launcher_of(context.flavor) is not None:
        return None
    return Refusal(
        f"mpirun can't use {ipv6[0].ssh_name}: it reads an IPv6 address in its list of hosts as a host and a count",
        "a name for that host in the hostfile, with internal=ADDRESS after it; or --iface with an IPv4 network",
        tuple(node.name for node in ipv6),
    )


def _settings(context: LaunchContext) -> tuple[Setting, ...]:
    modules = (python_env, threads, comm_env, allreduce, fp32_math, hub_settings)
    planned = [setting for module in modules for setting in module.settings(context)]
    gathered = context.gathered
    settings = apply_overrides(planned, given_settings(gathered), gathered.spec.exports)
    chosen = frozenset(setting.name for setting in settings)
    return (*settings, *python_env.strays(context, chosen))


def _host_plan(context: LaunchContext, node: NodeLayout) -> HostPlan:
    omp = context.omp or node.binding.threads
    batch = threads.by_turns(context, node)
    ranks = tuple(
        RankPlan(node.first + local_rank, local_rank, node.name, slot.cores, omp, slot.workers, slot.memory, batch)
        for local_rank, slot in enumerate(node.binding.slots)
    )
    tier, cores = node.facts.cpu.tier, node.cores.count
    return HostPlan(node.name, node.address, node.ssh_name, ranks, node.iface, tier, cores)


def _command(gathered: Gathered) -> tuple[str, ...]:
    if gathered.spec.kind == "command":
        return gathered.spec.project.command
    module = ("-m",) if gathered.spec.kind == "module" else ()
    return (gathered.env.python, *module, *gathered.spec.project.command)
