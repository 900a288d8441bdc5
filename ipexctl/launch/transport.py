"""Variables of gloo, oneCCL, libfabric and the MPI library: how ranks reach one another. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.launch.plan import Setting
from ipexctl.launch.scene import each_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.facts.facts import Facts
    from ipexctl.launch.scene import Member, Said, Scene

_OMNI_PATH: Final = "hfi1"


def settings(scene: Scene) -> Iterator[Setting]:
    yield from _meeting(scene)
    if scene.backend == "ccl":
        yield from _oneccl(scene)
    if scene.flavor == "intel" or scene.backend == "ccl":
        yield from _fabric(scene)
    yield from _yielding(scene)


def iface_of(facts: Facts, address: str) -> str | None:
    """The interface that carries the address; None where the address is another's, as behind NAT."""
    return next(
        (nic.name for nic in facts.network.nics if any(found.address == address for found in nic.addresses)), None
    )


def common_iface(scene: Scene) -> str | None:
    """The interface's name where every host calls it the same."""
    names = {member.iface for member in scene.members}
    return names.pop() if len(names) == 1 else None


def over_mpi(scene: Scene) -> bool:
    """Whether oneCCL talks through the MPI library: it is built for Intel's, and needs Intel's mpirun for it."""
    return scene.backend == "ccl" and scene.flavor == "intel"


def _meeting(scene: Scene) -> Iterator[Setting]:
    port = scene.request.options.master_port
    if scene.alone:
        yield Setting("MASTER_ADDR", "127.0.0.1", "all ranks are on this one host")
    else:
        node0 = scene.members[0]
        yield Setting(
            "MASTER_ADDR", node0.address, f"where rank 0 is: {node0.name}'s address on the nodes' own network"
        )
    if port is not None:
        said = scene.request.options.said.get("master_port", "you said so: --master-port")
        yield Setting("MASTER_PORT", str(port), said)

    def loopback_or_iface(member: Member) -> Said | None:
        if scene.alone:
            return "lo", "all ranks are on this one host: nothing leaves it"
        if member.iface is None:
            return None
        return member.iface, (
            "the interface by which the others reach this host; gloo by itself asks for the host's own name, "
            "which is often 127.0.1.1"
        )

    def rpc(member: Member) -> Said | None:
        said = loopback_or_iface(member)
        return (said[0], "the same for torch.distributed.rpc") if said else None

    yield from each_host(scene.members, "GLOO_SOCKET_IFNAME", loopback_or_iface)
    yield from each_host(scene.members, "TP_SOCKET_IFNAME", rpc)


def _oneccl(scene: Scene) -> Iterator[Setting]:
    if scene.request.options.ccl_workers is not None:
        why = "you said so: --ccl-workers"
    else:
        why = "one thread beside compute keeps up with one network link; more take cores from compute"
    yield Setting("CCL_WORKER_COUNT", str(scene.workers), why)

    def affinity(member: Member) -> Said | None:
        cores = [core for seat in member.binding.seats for core in seat.workers]
        if len(cores) != scene.workers * member.count:
            return None
        listed = ",".join(map(str, cores))
        return listed, "the last cores of each rank's block, kept free of compute: oneCCL wants one entry a worker"

    def offload(member: Member) -> Said | None:
        if member.binding.workers:
            return None
        return "0", "a rank has no core to spare: communication runs in the rank's own thread rather than against it"

    yield from each_host(scene.members, "CCL_WORKER_AFFINITY", affinity)
    yield from each_host(scene.members, "CCL_WORKER_OFFLOAD", offload)
    if over_mpi(scene):
        yield Setting("CCL_ATL_TRANSPORT", "mpi", "ranks started by Intel MPI's mpirun: its library is the fastest way")
        yield Setting("CCL_PROCESS_LAUNCHER", "hydra", "where oneCCL learns a rank's place on its host from")
        return
    why = "oneCCL is built for Intel MPI's library, and another mpirun starts these ranks: libfabric needs none"
    yield Setting("CCL_ATL_TRANSPORT", "ofi", why)
    yield Setting("CCL_PROCESS_LAUNCHER", "none", "oneCCL is told each rank's place on its host rather than asking MPI")
    yield from each_host(
        scene.members, "CCL_LOCAL_SIZE", lambda member: (str(member.count), "how many ranks this host has")
    )
    for member in scene.members:
        for at in range(member.count):
            yield Setting("CCL_LOCAL_RANK", str(at), "which of its host's ranks it is", member.name, member.first + at)
    yield from each_host(
        scene.members,
        "CCL_KVS_IFACE",
        lambda member: (
            (member.iface, "where ranks first meet; with several interfaces oneCCL may wait on a wrong one")
            if member.iface and not scene.alone
            else None
        ),
    )


def _fabric(scene: Scene) -> Iterator[Setting]:
    if scene.flavor == "intel":
        yield Setting("I_MPI_PIN", "0", "each rank is bound to its cores already, and must not be bound twice")
        if scene.alone:
            yield Setting(
                "I_MPI_FABRICS", "shm", "all ranks are on this one host: shared memory, and no network at all"
            )
        else:
            yield Setting("I_MPI_FABRICS", "shm:ofi", "shared memory within a host, libfabric between hosts")
    if scene.alone and (scene.flavor == "intel" or scene.backend != "ccl"):
        return
    if _has_fast_network(scene):
        return
    logins = {member.facts.environment.variables.get("FI_PROVIDER") for member in scene.members}
    if len(logins) == 1 and (theirs := next(iter(logins))):
        yield Setting("FI_PROVIDER", theirs, "a login on every host sets it: whoever set up the network knows")
        return
    asked = scene.wanted.get("FI_PROVIDER")
    if asked and "tcp" not in asked:
        return
    yield Setting("FI_PROVIDER", "tcp", "plain Ethernet; left to itself, libfabric may pick one that hangs")

    def interface(member: Member) -> Said | None:
        if scene.alone:
            return "lo", "all ranks are on this one host"
        if member.iface is None:
            return None
        return (
            member.iface,
            "the same interface: where there are docker's or other bridges, libfabric may wait on one for ever",
        )

    yield from each_host(scene.members, "FI_TCP_IFACE", interface)


def _has_fast_network(scene: Scene) -> bool:
    return not scene.alone and all(has_fast_network(member.facts) for member in scene.members)


def has_fast_network(facts: Facts) -> bool:
    """InfiniBand or Omni-Path that is up; RoCE is Ethernet, and works only where the switches are set up for it."""
    return any(
        "ACTIVE" in (card.state or "").upper() and (card.link == "InfiniBand" or card.name.startswith(_OMNI_PATH))
        for card in facts.network.rdma
    )


def notes(scene: Scene) -> Iterator[str]:
    if (scene.flavor == "intel" or scene.backend == "ccl") and _has_fast_network(scene):
        yield (
            "FI_PROVIDER is left alone: every host has InfiniBand or Omni-Path, and libfabric finds its provider; "
            "-x FI_PROVIDER=tcp goes back to Ethernet"
        )
    if not scene.alone:
        for member in scene.members:
            if member.iface is None:
                yield (
                    f"{member.name}: no interface there has {member.address}, so none is named to gloo and libfabric; "
                    "--iface NAME or CIDR chooses another network"
                )


def _yielding(scene: Scene) -> Iterator[Setting]:
    """Whoever waits, spins; where there are more of them than cores, each must step aside."""
    if scene.backend == "gloo":
        return

    def say(value: str) -> list[Setting]:
        name = "CCL_YIELD" if value == "sched_yield" else "I_MPI_THREAD_YIELD"
        reason = "more ranks and workers than cores: those that wait give their core up instead of spinning on it"
        return each_host(scene.members, name, lambda member: (value, reason) if _outnumbered(member) else None)

    if scene.backend == "ccl":
        yield from say("sched_yield")
    if scene.flavor == "intel":
        yield from say("2")


def _outnumbered(member: Member) -> bool:
    binding = member.binding
    return binding.crowded or member.count * (1 + binding.workers) > max(1, member.facts.cpu.allowed or 1)
