"""From a request to a plan, or to why there is none. Pure: the rules live in the modules it calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ipexctl.launch import comm_env as transport
from ipexctl.launch import mpi_commands as flavours
from ipexctl.launch import rank_env as surroundings
from ipexctl.launch import threads
from ipexctl.launch.binding import bind
from ipexctl.launch.context import LaunchContext, NodeLayout
from ipexctl.launch.defaults import default_ranks, dtype
from ipexctl.launch.mpi import find_launcher
from ipexctl.launch.overrides import chosen_backend, find_obstacle, overridden, requested_number, requested_variables
from ipexctl.launch.plan import HostPlan, LaunchPlan, LaunchRefusal, RankPlan
from ipexctl.launch.rank_distribution import distribute_ranks
from ipexctl.launch.topology import cores_of
from ipexctl.launch.warnings import remarks

if TYPE_CHECKING:
    from ipexctl.launch.plan import Setting
    from ipexctl.launch.request import LaunchRequest


def plan_launch(request: LaunchRequest) -> LaunchPlan | LaunchRefusal:
    """The plan of a run on these hosts. Names no host it has no facts of."""
    if (refusal := find_obstacle(request)) is not None:
        return refusal
    backend = chosen_backend(request)
    if isinstance(backend, LaunchRefusal):
        return backend
    default = min(default_ranks(request.facts[host.name].cpu) for host in request.hosts)
    share = distribute_ranks(request.hosts, request.options.n, request.options.ppn, default)
    if isinstance(share, LaunchRefusal):
        return share
    share = replace(share, why=request.options.said.get("ranks", share.why))
    names = [host.name for host, count in zip(request.hosts, share.counts, strict=True) if count]
    launcher = find_launcher(request, names)
    if isinstance(launcher, LaunchRefusal):
        return launcher
    wanted = requested_variables(request)
    workers = 0
    if backend == "ccl":
        workers = requested_number(wanted, "CCL_WORKER_COUNT") or request.options.ccl_workers or 1
    nodes = _members(request, dict(zip((host.name for host in request.hosts), share.counts, strict=True)), workers)
    context = LaunchContext(request, nodes, backend, launcher.flavor, workers, wanted)
    if (refusal := _unspeakable(context)) is not None:
        return refusal
    settings = _settings(context)
    port = requested_number(wanted, "MASTER_PORT") or request.options.master_port
    own_address = "127.0.0.1" if context.alone else nodes[0].address
    return LaunchPlan(
        flavor=launcher.flavor,
        launcher=launcher.path,
        argv=flavours.argv(context, launcher),
        launcher_env=tuple(flavours.launcher_env(context, launcher)),
        world_size=context.world_size,
        hosts=_hosts(context),
        settings=settings,
        master_addr=wanted.get("MASTER_ADDR") or own_address,
        master_port=port,
        backend=backend,
        dtype_hint=dtype(node.facts.cpu.tier or "unsupported" for node in nodes),
        python=request.env.python,
        env=request.env.name,
        command=_command(request),
        cwd=request.cwd,
        hostfile=flavours.hostfile(context),
        files=flavours.files(context),
        notes=remarks(context, share, launcher),
        time_limit=request.options.time_limit,
    )


def _members(request: LaunchRequest, counts: dict[str, int], workers: int) -> tuple[NodeLayout, ...]:
    nodes: list[NodeLayout] = []
    first = 0
    hosts = [host for host in request.hosts if counts[host.name]]
    for host in hosts:
        facts = request.facts[host.name]
        address = "127.0.0.1" if len(hosts) == 1 else request.internal[host.name]
        word = request.words.get(host.name, host.name)
        if (len(hosts) == 1 or host is request.node0) and ":" not in address:
            word = address  # hydra knows it for its own machine by the address, and would use ssh for some names
        cores = cores_of(facts.cpu)
        binding = bind(cores, counts[host.name], workers, request.options.bind)
        iface = transport.iface_of(facts, address) if len(hosts) > 1 else None
        nodes.append(NodeLayout(host.name, facts, address, word, first, cores, binding, iface))
        first += counts[host.name]
    return tuple(nodes)


def _unspeakable(context: LaunchContext) -> LaunchRefusal | None:
    """Hydra takes what stands behind a colon for a number of ranks; Open MPI takes a path apart at its spaces."""
    if context.flavor == "openmpi":
        config = context.request.ssh_config or ""
        if context.alone or not any(letter.isspace() for letter in config):
            return None
        return LaunchRefusal(
            f"Open MPI can't be given {config}: it takes the path apart at its spaces",
            "--home DIR with a path without spaces, or --mpi intel",
        )
    bad = [node for node in context.nodes if ":" in node.word]
    if not bad:
        return None
    return LaunchRefusal(
        f"mpirun can't be told {bad[0].word}: an IPv6 address in its list of hosts reads as a host and a count",
        "a name for that host in the hostfile, with internal=ADDRESS behind it; or --iface with an IPv4 network",
        tuple(node.name for node in bad),
    )


def _settings(context: LaunchContext) -> tuple[Setting, ...]:
    made = (*surroundings.settings(context), *threads.settings(context), *transport.settings(context))
    options = context.request.options
    kept = overridden(made, options.given, options.exports)
    chosen = frozenset(setting.name for setting in kept)
    return (*kept, *surroundings.strays(context, chosen))


def _hosts(context: LaunchContext) -> tuple[HostPlan, ...]:
    return tuple(
        HostPlan(node.name, node.address, node.word, _ranks(context, node), node.iface, node.facts.cpu.tier)
        for node in context.nodes
    )


def _ranks(context: LaunchContext, node: NodeLayout) -> tuple[RankPlan, ...]:
    threads_of = (
        requested_number(context.wanted, "OMP_NUM_THREADS") or context.request.options.omp or node.binding.threads
    )
    return tuple(
        RankPlan(node.first + at, at, node.name, slot.cores, threads_of, slot.workers, slot.memory)
        for at, slot in enumerate(node.binding.seats)
    )


def _command(request: LaunchRequest) -> tuple[str, ...]:
    if request.kind == "command":
        return request.command
    module = ("-m",) if request.kind == "module" else ()
    return (request.env.python, *module, *request.command)
