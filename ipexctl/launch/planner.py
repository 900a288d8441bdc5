"""From a request to a plan, or to why there is none. Pure: the rules live in the modules it calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ipexctl.launch import flavours, surroundings, threads, transport
from ipexctl.launch.binding import bind
from ipexctl.launch.layout import default_ranks, dtype
from ipexctl.launch.mpi import find_launcher
from ipexctl.launch.plan import HostPlan, LaunchPlan, LaunchRefusal, RankPlan
from ipexctl.launch.remarks import remarks
from ipexctl.launch.scene import Member, Scene
from ipexctl.launch.share import share_ranks
from ipexctl.launch.topology import cores_of
from ipexctl.launch.wishes import chosen_backend, obstacle, overridden, wanted_number, wanted_of

if TYPE_CHECKING:
    from ipexctl.launch.plan import Setting
    from ipexctl.launch.request import LaunchRequest


def plan_launch(request: LaunchRequest) -> LaunchPlan | LaunchRefusal:
    """The plan of a run on these hosts. Names no host it has no facts of."""
    if (refusal := obstacle(request)) is not None:
        return refusal
    backend = chosen_backend(request)
    if isinstance(backend, LaunchRefusal):
        return backend
    default = min(default_ranks(request.facts[host.name].cpu) for host in request.hosts)
    share = share_ranks(request.hosts, request.options.n, request.options.ppn, default)
    if isinstance(share, LaunchRefusal):
        return share
    share = replace(share, why=request.options.said.get("ranks", share.why))
    names = [host.name for host, count in zip(request.hosts, share.counts, strict=True) if count]
    launcher = find_launcher(request, names)
    if isinstance(launcher, LaunchRefusal):
        return launcher
    wanted = wanted_of(request)
    workers = 0
    if backend == "ccl":
        workers = wanted_number(wanted, "CCL_WORKER_COUNT") or request.options.ccl_workers or 1
    members = _members(request, dict(zip((host.name for host in request.hosts), share.counts, strict=True)), workers)
    scene = Scene(request, members, backend, launcher.flavor, workers, wanted)
    if (refusal := _unspeakable(scene)) is not None:
        return refusal
    settings = _settings(scene)
    port = wanted_number(wanted, "MASTER_PORT") or request.options.master_port
    own_address = "127.0.0.1" if scene.alone else members[0].address
    return LaunchPlan(
        flavor=launcher.flavor,
        launcher=launcher.path,
        argv=flavours.argv(scene, launcher),
        launcher_env=tuple(flavours.launcher_env(scene, launcher)),
        world_size=scene.world_size,
        hosts=_hosts(scene),
        settings=settings,
        master_addr=wanted.get("MASTER_ADDR") or own_address,
        master_port=port,
        backend=backend,
        dtype_hint=dtype(member.facts.cpu.tier or "unsupported" for member in members),
        python=request.env.python,
        env=request.env.name,
        command=_command(request),
        cwd=request.cwd,
        hostfile=flavours.hostfile(scene),
        files=flavours.files(scene),
        notes=remarks(scene, share, launcher),
        time_limit=request.options.time_limit,
    )


def _members(request: LaunchRequest, counts: dict[str, int], workers: int) -> tuple[Member, ...]:
    members: list[Member] = []
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
        members.append(Member(host.name, facts, address, word, first, cores, binding, iface))
        first += counts[host.name]
    return tuple(members)


def _unspeakable(scene: Scene) -> LaunchRefusal | None:
    """Hydra takes what stands behind a colon for a number of ranks; Open MPI takes a path apart at its spaces."""
    if scene.flavor == "openmpi":
        config = scene.request.ssh_config or ""
        if scene.alone or not any(letter.isspace() for letter in config):
            return None
        return LaunchRefusal(
            f"Open MPI can't be given {config}: it takes the path apart at its spaces",
            "--home DIR with a path without spaces, or --mpi intel",
        )
    bad = [member for member in scene.members if ":" in member.word]
    if not bad:
        return None
    return LaunchRefusal(
        f"mpirun can't be told {bad[0].word}: an IPv6 address in its list of hosts reads as a host and a count",
        "a name for that host in the hostfile, with internal=ADDRESS behind it; or --iface with an IPv4 network",
        tuple(member.name for member in bad),
    )


def _settings(scene: Scene) -> tuple[Setting, ...]:
    made = (*surroundings.settings(scene), *threads.settings(scene), *transport.settings(scene))
    options = scene.request.options
    kept = overridden(made, options.given, options.exports)
    chosen = frozenset(setting.name for setting in kept)
    return (*kept, *surroundings.strays(scene, chosen))


def _hosts(scene: Scene) -> tuple[HostPlan, ...]:
    return tuple(
        HostPlan(member.name, member.address, member.word, _ranks(scene, member), member.iface, member.facts.cpu.tier)
        for member in scene.members
    )


def _ranks(scene: Scene, member: Member) -> tuple[RankPlan, ...]:
    threads_of = wanted_number(scene.wanted, "OMP_NUM_THREADS") or scene.request.options.omp or member.binding.threads
    return tuple(
        RankPlan(member.first + at, at, member.name, seat.cores, threads_of, seat.workers, seat.memory)
        for at, seat in enumerate(member.binding.seats)
    )


def _command(request: LaunchRequest) -> tuple[str, ...]:
    if request.kind == "command":
        return request.command
    module = ("-m",) if request.kind == "module" else ()
    return (request.env.python, *module, *request.command)
