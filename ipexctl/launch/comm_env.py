"""Choose the variables of gloo, oneCCL, libfabric and the MPI library, each with its reason. Nothing here reads a file
or contacts a host.

A variable is set where the library's own choice may hang or be slow (an address such as 127.0.1.1, a docker bridge,
binding twice). It is left alone where the site has set it, or where there is a fast network. Backend `none` gets no
variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ipexctl.launch.plan_draft import ChosenValue, NodeLayout, PlanDraft
from ipexctl.node.common.plan import Setting

_OMNI_PATH: Final = "hfi1"
"""Beginning of the names of Omni-Path cards."""
_ASKS_FIRST: Final = re.compile(r"MASTER_ADDR[\"']\s*(?:not\s+)?in\b")
"""Matches a script that looks whether MASTER_ADDR is set before it sets it."""
_OWN_MASTER: Final = re.compile(
    r"^[^#\n]*(?:\[[\"']MASTER_ADDR[\"']\]\s*=\s*[\"']|init_method\s*=\s*[\"']tcp://)(?P<place>localhost|[\d.]+)[\"':]",
    re.MULTILINE,
)
"""A line that sets an address of rank 0."""


def settings(draft: PlanDraft) -> Iterator[Setting]:
    """Yield the variables by which the ranks meet and communicate."""
    if draft.plan.backend == "none":
        return
    yield from _rendezvous(draft)
    if draft.plan.backend == "ccl":
        yield from _oneccl(draft)
    if draft.mpi is not None:
        yield from (Setting(*variable) for variable in draft.mpi.rank_variables(draft.mpirun_line))
    if _uses_libfabric(draft):
        yield from _fabric(draft)
    yield from _yielding(draft)


def over_mpi(draft: PlanDraft) -> bool:
    """True if oneCCL uses the MPI library, which must be Intel's and needs its mpirun."""
    transport = draft.wanted.get("CCL_ATL_TRANSPORT", "mpi")
    return draft.plan.backend == "ccl" and draft.mpi is not None and draft.mpi.is_of_oneccl and transport == "mpi"


def _uses_libfabric(draft: PlanDraft) -> bool:
    """True if oneCCL or the MPI sends through libfabric."""
    return draft.plan.backend == "ccl" or (draft.mpi is not None and draft.mpi.sends_by_libfabric)


def _rendezvous(draft: PlanDraft) -> Iterator[Setting]:
    """Yield the address and port of rank 0, and the network interface of each node."""
    port = draft.context.asked.master_port
    if draft.alone:
        yield Setting("MASTER_ADDR", "127.0.0.1", "all ranks are on this one host")
    else:
        node0 = draft.nodes[0]
        yield Setting(
            "MASTER_ADDR", node0.address, f"the host of rank 0: the address of {node0.name} on the network of the nodes"
        )
    if port is not None:
        reason = draft.context.asked.sources.get("master_port", "set by --master-port")
        yield Setting("MASTER_PORT", str(port), reason)

    def loopback_or_iface(node: NodeLayout) -> ChosenValue | None:
        """Return the interface that gloo uses on the node; None if no interface has the node's address."""
        if draft.alone:
            return "lo", "all ranks are on this one host: nothing leaves it"
        if node.iface is None:
            return None
        return node.iface, (
            "the interface that the other hosts reach; alone, gloo takes the address of the host name, often 127.0.1.1"
        )

    def rpc(node: NodeLayout) -> ChosenValue | None:
        """Return the same interface for torch.distributed.rpc."""
        choice = loopback_or_iface(node)
        return (choice[0], "the same for torch.distributed.rpc") if choice else None

    yield from draft.per_node("GLOO_SOCKET_IFNAME", loopback_or_iface)
    yield from draft.per_node("TP_SOCKET_IFNAME", rpc)


def _oneccl(draft: PlanDraft) -> Iterator[Setting]:
    """Yield the variables of oneCCL: its workers, their cores, and the transport."""
    reason = "one thread keeps up with one network link; more take cores from the computation"
    if not draft.workers:
        reason = "CCL_WORKER_OFFLOAD turns workers off; oneCCL and transformers refuse a count of 0"
    elif draft.context.asked.ccl_workers is not None:
        reason = "set by --ccl-workers"
    yield Setting("CCL_WORKER_COUNT", str(draft.workers or 1), reason)

    def affinity(node: NodeLayout) -> ChosenValue | None:
        """Return the cores of the node's workers; None if they are not bound."""
        cores = [core for slot in node.binding.slots for core in slot.workers]
        if not cores or len(cores) != draft.workers * node.count:
            return None
        listed = ",".join(map(str, cores))
        return listed, "the last cores of each rank's block, kept free of compute: oneCCL wants one entry per worker"

    yield from draft.per_node("CCL_WORKER_AFFINITY", affinity)
    yield from draft.per_node("CCL_WORKER_OFFLOAD", lambda node: _offload(draft, node))
    yield from _transport(draft)


def _offload(draft: PlanDraft, node: NodeLayout) -> ChosenValue | None:
    """Return that communication runs in the rank's own thread, and why; None if workers have cores."""
    if node.binding.workers:
        return None
    if draft.world_size == 1:
        return "0", "a single rank has nothing to communicate: all cores compute"
    if not draft.workers:
        return "0", "no oneCCL worker is wanted: communication runs in the rank's own thread"
    cores = node.binding.share
    if draft.omp is not None and cores > draft.workers:
        return "0", (
            f"{draft.omp} of {cores} cores of a rank are for its OpenMP threads, and none is left for a worker: "
            "communication runs in the rank's own thread"
        )
    return "0", "a rank has no core to spare: communication runs in the rank's own thread rather than against it"


def _transport(draft: PlanDraft) -> Iterator[Setting]:
    """Yield how oneCCL sends: over Intel MPI if its mpirun starts the ranks, else over libfabric."""
    if over_mpi(draft):
        yield Setting(
            "CCL_ATL_TRANSPORT",
            "mpi",
            "ranks are started by Intel MPI's mpirun, and its library is the fastest transport",
        )
        yield Setting(
            "CCL_PROCESS_LAUNCHER", "hydra", "oneCCL learns a rank's place on its host from Intel MPI's launcher"
        )
        if draft.workers <= 1:
            reason = "one thread of oneCCL calls MPI; with oneCCL's own value, 1, every rank prints a warning"
            yield Setting("I_MPI_THREAD_SPLIT", "0", reason)
        return
    reason = "oneCCL is built for Intel MPI, whose mpirun does not start these ranks; libfabric needs no mpirun"
    yield Setting("CCL_ATL_TRANSPORT", "ofi", reason)
    yield Setting(
        "CCL_PROCESS_LAUNCHER", "none", "oneCCL gets each rank's place on its host from these variables, not from MPI"
    )
    yield from draft.per_node("CCL_LOCAL_SIZE", lambda node: (str(node.count), "the number of ranks on this host"))
    for node in draft.nodes:
        for at in range(node.count):
            yield Setting(
                "CCL_LOCAL_RANK", str(at), "its number among the ranks of its host", node.name, node.first + at
            )
    yield from draft.per_node(
        "CCL_KVS_IFACE",
        lambda node: (
            (node.iface, "the interface for the first contact of ranks; with several, oneCCL may wait on a wrong one")
            if node.iface and not draft.alone
            else None
        ),
    )


def _fabric(draft: PlanDraft) -> Iterator[Setting]:
    """Yield the provider of libfabric and its interface: tcp, unless there is a fast network or another provider was
    chosen.
    """
    if draft.alone and (draft.plan.backend != "ccl" or over_mpi(draft)):
        return
    if _has_fast_network(draft):
        return
    logins = {node.facts.environment.variables.get("FI_PROVIDER") for node in draft.nodes}
    if len(logins) == 1 and (provider := next(iter(logins))):
        yield Setting("FI_PROVIDER", provider, "a login on every host sets it, so the site has chosen it")
        return
    wanted = draft.wanted.get("FI_PROVIDER")
    if wanted and "tcp" not in wanted:
        return
    yield Setting("FI_PROVIDER", "tcp", "plain Ethernet; by default libfabric may choose a provider that hangs")

    def interface(node: NodeLayout) -> ChosenValue | None:
        """Return the interface that the provider uses on the node; None if no interface has the node's address."""
        if draft.alone:
            return "lo", "all ranks are on this one host"
        if node.iface is None:
            return None
        return (
            node.iface,
            "the same interface: with bridges (docker's, say), libfabric may hang on one of them",
        )

    yield from draft.per_node("FI_TCP_IFACE", interface)


def _has_fast_network(draft: PlanDraft) -> bool:
    """True if there are several nodes, and each has InfiniBand or Omni-Path that is up.

    RoCE does not count, because it needs switches that are set up for it.
    """
    return not draft.alone and all(
        any(
            "ACTIVE" in (card.state or "").upper() and (card.link == "InfiniBand" or card.name.startswith(_OMNI_PATH))
            for card in node.facts.network.rdma
        )
        for node in draft.nodes
    )


def notes(draft: PlanDraft) -> Iterator[str]:
    """Warn of an address of rank 0 that is not used, and of interfaces that are not known."""
    if draft.plan.backend == "none":
        return
    if (note := _other_master(draft)) is not None:
        yield note
    if _uses_libfabric(draft) and _has_fast_network(draft):
        yield (
            "FI_PROVIDER is not set: every host has InfiniBand or Omni-Path, and libfabric finds its provider; "
            "-x FI_PROVIDER=tcp uses Ethernet"
        )
    if not draft.alone:
        for node in draft.nodes:
            if node.iface is None:
                yield (
                    f"{node.name}: no interface has the address {node.address}, so gloo and libfabric choose one; "
                    "--iface NAME or CIDR chooses another network"
                )


def _other_master(draft: PlanDraft) -> str | None:
    """Return a note on another MASTER_ADDR, such as 127.0.0.1, in the script or the pasted line; None if there is none.

    The address of a pasted line is never used.
    """
    node0, wanted = draft.nodes[0], draft.context.asked.master_addr
    host, script = draft.context.hosts[0], draft.context.spec.project.script
    node0_names = {node0.name, host.name, host.address, node0.address, node0.facts.network.hostname}
    node0_names |= node0.facts.network.addresses

    def is_elsewhere(address: str) -> bool:
        """True if rank 0 is not at the address. A loopback address is right on a single node."""
        is_loopback = address in ("localhost", "::1") or address.startswith("127.")
        return not (draft.alone if is_loopback else address in node0_names)

    text = (script.text if script is not None else "") or ""
    for match in () if _ASKS_FIRST.search(text) else _OWN_MASTER.finditer(text):
        if is_elsewhere(match["place"]):
            leave = (
                "leave out what sets MASTER_ADDR, MASTER_PORT or init_method there: ipexctl sets them for every rank"
            )
            return f"the script looks for rank 0 at {match['place']}, but it is at {node0.address}; {leave}"
    if not wanted or not is_elsewhere(wanted):
        return None
    source = draft.context.asked.sources.get("master_addr", "MASTER_ADDR")
    return f"{source}: {wanted} is not used, rank 0 runs on {node0.name} and MASTER_ADDR is {node0.address}"


def _yielding(draft: PlanDraft) -> Iterator[Setting]:
    """Yield variables that make waiting ranks yield their core, on nodes with more ranks and workers than cores.

    oneCCL and the MPI wait by spinning.
    """
    if draft.plan.backend in ("gloo", "none"):
        return

    def settings_for(name: str, value: str) -> list[Setting]:
        """Return the settings of a variable on the nodes that need it."""
        reason = "more ranks and workers than cores: those that wait yield their core instead of spinning on it"
        return draft.per_node(name, lambda node: (value, reason) if _outnumbered(node) else None)

    if draft.plan.backend == "ccl":
        yield from settings_for("CCL_YIELD", "sched_yield")
    if draft.mpi is not None and draft.mpi.yielding:
        yield from settings_for(draft.mpi.yielding, "2")


def _outnumbered(node: NodeLayout) -> bool:
    """True if the node has more ranks and workers than CPUs."""
    binding = node.binding
    return binding.crowded or node.count * (1 + binding.workers) > max(1, node.facts.cpu.allowed or 1)
