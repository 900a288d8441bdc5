"""Variables of gloo, oneCCL, libfabric and the MPI library: how ranks reach one another. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.launch.context import each_host
from ipexctl.launch.plan import Setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipexctl.facts.facts import Facts
    from ipexctl.launch.context import LaunchContext, NodeLayout, Said

_OMNI_PATH: Final = "hfi1"


def settings(context: LaunchContext) -> Iterator[Setting]:
    yield from _meeting(context)
    if context.backend == "ccl":
        yield from _oneccl(context)
    if context.flavor == "intel" or context.backend == "ccl":
        yield from _fabric(context)
    yield from _yielding(context)


def iface_of(facts: Facts, address: str) -> str | None:
    """The interface that carries the address; None where the address is another's, as behind NAT."""
    return next(
        (nic.name for nic in facts.network.nics if any(found.address == address for found in nic.addresses)), None
    )


def common_iface(context: LaunchContext) -> str | None:
    """The interface's name where every host calls it the same."""
    names = {node.iface for node in context.nodes}
    return names.pop() if len(names) == 1 else None


def over_mpi(context: LaunchContext) -> bool:
    """Whether oneCCL talks through the MPI library: it is built for Intel's, and needs Intel's mpirun for it."""
    return context.backend == "ccl" and context.flavor == "intel"


def _meeting(context: LaunchContext) -> Iterator[Setting]:
    port = context.request.options.master_port
    if context.alone:
        yield Setting("MASTER_ADDR", "127.0.0.1", "all ranks are on this one host")
    else:
        node0 = context.nodes[0]
        yield Setting(
            "MASTER_ADDR", node0.address, f"where rank 0 is: {node0.name}'s address on the nodes' own network"
        )
    if port is not None:
        said = context.request.options.said.get("master_port", "you said so: --master-port")
        yield Setting("MASTER_PORT", str(port), said)

    def loopback_or_iface(node: NodeLayout) -> Said | None:
        if context.alone:
            return "lo", "all ranks are on this one host: nothing leaves it"
        if node.iface is None:
            return None
        return node.iface, (
            "the interface by which the others reach this host; gloo by itself asks for the host's own name, "
            "which is often 127.0.1.1"
        )

    def rpc(node: NodeLayout) -> Said | None:
        said = loopback_or_iface(node)
        return (said[0], "the same for torch.distributed.rpc") if said else None

    yield from each_host(context.nodes, "GLOO_SOCKET_IFNAME", loopback_or_iface)
    yield from each_host(context.nodes, "TP_SOCKET_IFNAME", rpc)


def _oneccl(context: LaunchContext) -> Iterator[Setting]:
    if context.request.options.ccl_workers is not None:
        why = "you said so: --ccl-workers"
    else:
        why = "one thread beside compute keeps up with one network link; more take cores from compute"
    yield Setting("CCL_WORKER_COUNT", str(context.workers), why)

    def affinity(node: NodeLayout) -> Said | None:
        cores = [core for slot in node.binding.seats for core in slot.workers]
        if len(cores) != context.workers * node.count:
            return None
        listed = ",".join(map(str, cores))
        return listed, "the last cores of each rank's block, kept free of compute: oneCCL wants one entry a worker"

    def offload(node: NodeLayout) -> Said | None:
        if node.binding.workers:
            return None
        return "0", "a rank has no core to spare: communication runs in the rank's own thread rather than against it"

    yield from each_host(context.nodes, "CCL_WORKER_AFFINITY", affinity)
    yield from each_host(context.nodes, "CCL_WORKER_OFFLOAD", offload)
    if over_mpi(context):
        yield Setting("CCL_ATL_TRANSPORT", "mpi", "ranks started by Intel MPI's mpirun: its library is the fastest way")
        yield Setting("CCL_PROCESS_LAUNCHER", "hydra", "where oneCCL learns a rank's place on its host from")
        return
    why = "oneCCL is built for Intel MPI's library, and another mpirun starts these ranks: libfabric needs none"
    yield Setting("CCL_ATL_TRANSPORT", "ofi", why)
    yield Setting("CCL_PROCESS_LAUNCHER", "none", "oneCCL is told each rank's place on its host rather than asking MPI")
    yield from each_host(
        context.nodes, "CCL_LOCAL_SIZE", lambda node: (str(node.count), "how many ranks this host has")
    )
    for node in context.nodes:
        for at in range(node.count):
            yield Setting("CCL_LOCAL_RANK", str(at), "which of its host's ranks it is", node.name, node.first + at)
    yield from each_host(
        context.nodes,
        "CCL_KVS_IFACE",
        lambda node: (
            (node.iface, "where ranks first meet; with several interfaces oneCCL may wait on a wrong one")
            if node.iface and not context.alone
            else None
        ),
    )


def _fabric(context: LaunchContext) -> Iterator[Setting]:
    if context.flavor == "intel":
        yield Setting("I_MPI_PIN", "0", "each rank is bound to its cores already, and must not be bound twice")
        if context.alone:
            yield Setting(
                "I_MPI_FABRICS", "shm", "all ranks are on this one host: shared memory, and no network at all"
            )
        else:
            yield Setting("I_MPI_FABRICS", "shm:ofi", "shared memory within a host, libfabric between hosts")
    if context.alone and (context.flavor == "intel" or context.backend != "ccl"):
        return
    if _has_fast_network(context):
        return
    logins = {node.facts.environment.variables.get("FI_PROVIDER") for node in context.nodes}
    if len(logins) == 1 and (theirs := next(iter(logins))):
        yield Setting("FI_PROVIDER", theirs, "a login on every host sets it: whoever set up the network knows")
        return
    asked = context.wanted.get("FI_PROVIDER")
    if asked and "tcp" not in asked:
        return
    yield Setting("FI_PROVIDER", "tcp", "plain Ethernet; left to itself, libfabric may pick one that hangs")

    def interface(node: NodeLayout) -> Said | None:
        if context.alone:
            return "lo", "all ranks are on this one host"
        if node.iface is None:
            return None
        return (
            node.iface,
            "the same interface: where there are docker's or other bridges, libfabric may wait on one for ever",
        )

    yield from each_host(context.nodes, "FI_TCP_IFACE", interface)


def _has_fast_network(context: LaunchContext) -> bool:
    return not context.alone and all(has_fast_network(node.facts) for node in context.nodes)


def has_fast_network(facts: Facts) -> bool:
    """InfiniBand or Omni-Path that is up; RoCE is Ethernet, and works only where the switches are set up for it."""
    return any(
        "ACTIVE" in (card.state or "").upper() and (card.link == "InfiniBand" or card.name.startswith(_OMNI_PATH))
        for card in facts.network.rdma
    )


def notes(context: LaunchContext) -> Iterator[str]:
    if (context.flavor == "intel" or context.backend == "ccl") and _has_fast_network(context):
        yield (
            "FI_PROVIDER is left alone: every host has InfiniBand or Omni-Path, and libfabric finds its provider; "
            "-x FI_PROVIDER=tcp goes back to Ethernet"
        )
    if not context.alone:
        for node in context.nodes:
            if node.iface is None:
                yield (
                    f"{node.name}: no interface there has {node.address}, so none is named to gloo and libfabric; "
                    "--iface NAME or CIDR chooses another network"
                )


def _yielding(context: LaunchContext) -> Iterator[Setting]:
    """Whoever waits, spins; where there are more of them than cores, each must step aside."""
    if context.backend == "gloo":
        return

    def say(value: str) -> list[Setting]:
        name = "CCL_YIELD" if value == "sched_yield" else "I_MPI_THREAD_YIELD"
        reason = "more ranks and workers than cores: those that wait give their core up instead of spinning on it"
        return each_host(context.nodes, name, lambda node: (value, reason) if _outnumbered(node) else None)

    if context.backend == "ccl":
        yield from say("sched_yield")
    if context.flavor == "intel":
        yield from say("2")


def _outnumbered(node: NodeLayout) -> bool:
    binding = node.binding
    return binding.crowded or node.count * (1 + binding.workers) > max(1, node.facts.cpu.allowed or 1)
