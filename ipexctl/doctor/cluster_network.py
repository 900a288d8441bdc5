"""Rules over several hosts: the network they share, the names they know each other by, their clocks. Pure."""

from __future__ import annotations

from collections import defaultdict
from statistics import median_low
from typing import TYPE_CHECKING, Final

from ipexctl.doctor.cluster_context import groups, odd_ones
from ipexctl.doctor.finding import Finding
from ipexctl.doctor.host_context import few
from ipexctl.facts.internal import joining
from ipexctl.hosts.internal import common_networks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ipexctl.doctor.cluster_context import Cluster, Member, Rule
    from ipexctl.hosts.internal import Network

IDS: Final[Mapping[str, str]] = {
    "cluster.no_common_network": "the hosts share no network",
    "cluster.several_networks": "the hosts share several networks",
    "cluster.same_address": "different machines have one address",
    "cluster.iface_names_differ": "the interface of the common network has different names",
    "cluster.mixed_mtu": "different packet sizes on the common network",
    "cluster.mixed_speed": "different link speeds on the common network",
    "cluster.rdma_partial": "RDMA on some hosts only",
    "cluster.name_two_addresses": "one name leads to different addresses",
    "cluster.name_wrong": "a host's name leads to another host",
    "cluster.names_unresolved": "hosts don't know others by name",
    "cluster.clock_skew": "clocks differ",
}

_NAMES_ASIDE: Final = "as root, the same /etc/hosts on all hosts; ipexctl run does without names"


def no_network(cluster: Cluster) -> Iterator[Finding]:
    if cluster.refusal is not None:
        reason = cluster.refusal.reason
        yield Finding(
            "cluster.no_common_network",
            "fail",
            f"{reason[:1].upper()}{reason[1:]}: their ranks could not reach each other",
            cluster.refusal.fix,
            cluster.refusal.hosts,
        )


def several_networks(cluster: Cluster) -> Iterator[Finding]:
    """Not where the caller chose; v6 beside v4 on the same wires is no second network."""
    if cluster.refusal or cluster.iface or any(node.host.internal for node in cluster.nodes):
        return
    shared = common_networks(cluster.addresses)
    shared = tuple(network for network in shared if network.version == 4) or shared
    first = cluster.nodes[0]
    taken = next((network for network in shared if _speed_on(first, network, ours=True) is not None), None)
    if len(shared) < 2 or taken is None:
        return
    others = [network for network in shared if network != taken]
    speeds = {network: min(_speed_on(node, network) or 0 for node in cluster.nodes) for network in shared}
    faster = next((network for network in others if speeds[taken] and speeds[network] >= 2 * speeds[taken]), None)
    yield Finding(
        "cluster.several_networks",
        "warn" if faster else "info",
        f"All hosts share {few([str(network) for network in shared], 3)}; training would use {taken}"
        + (f", which is slower than {faster}" if faster else ""),
        f"--iface {faster or others[0]} chooses another",
        tuple(node.name for node in cluster.nodes),
    )


def _speed_on(node: Member, network: Network, *, ours: bool = False) -> int | None:
    """The speed of the interface a host has there; with `ours`, of the one training would use. 0: not known."""
    nics = [node.nic] if ours and node.nic else [] if ours else node.facts.network.nics
    for nic in nics:
        if any(address.network == network for address in joining(nic)):
            return nic.speed or 0
    return None


def same_address(cluster: Cluster) -> Iterator[Finding]:
    found: defaultdict[str, list[Member]] = defaultdict(list)
    for node in cluster.nodes:
        if node.context.internal:
            found[node.context.internal].append(node)
    for address, nodes in found.items():
        machines = {node.facts.machine for node in nodes}
        if len(nodes) > 1 and (len(machines) > 1 or None in machines):
            yield Finding(
                "cluster.same_address",
                "fail",
                f"Different hosts have the one address {address}: what is sent to one arrives at the other, and "
                "ranks never meet",
                "give each its own: ip addr on each, and internal=ADDRESS in the hostfile",
                tuple(node.name for node in nodes),
            )


def iface_names(cluster: Cluster) -> Iterator[Finding]:
    found = groups(cluster.nodes, lambda node: node.nic.name if node.nic else None)
    if len(found) > 1 and not cluster.refusal:
        usual, others, names = odd_ones(found)
        yield Finding(
            "cluster.iface_names_differ",
            "info",
            f"The common network's interface is {few(others, 3)} here, {usual} on the others: one FI_TCP_IFACE for "
            "all would hang",
            "nothing to do under ipexctl run, which names it host by host",
            names,
        )


def mtu(cluster: Cluster) -> Iterator[Finding]:
    found = groups(cluster.nodes, lambda node: node.nic.mtu if node.nic else None)
    if len(found) > 1 and not cluster.refusal:
        usual, others, names = odd_ones(found)
        nics = {node.nic.name for node in cluster.nodes if node.name in names and node.nic}
        yield Finding(
            "cluster.mixed_mtu",
            "warn",
            f"Packets of {few([str(size) for size in others], 3)} bytes here, {usual} on the others (MTU): ssh "
            "works, but large messages may be lost and training hang",
            f"as root: ip link set dev {nics.pop() if len(nics) == 1 else 'IFACE'} mtu {usual}, and the same on the "
            "switch",
            names,
        )


def speed(cluster: Cluster) -> Iterator[Finding]:
    found = groups(cluster.nodes, lambda node: node.nic.speed if node.nic else None)
    if len(found) > 1 and not cluster.refusal:
        fastest, slowest = max(found), min(found)
        slow = tuple(m.name for m in cluster.nodes for rate in found if rate < fastest and m.name in found[rate])
        yield Finding(
            "cluster.mixed_speed",
            "warn",
            f"Links of {_rate(slowest)} here, {_rate(fastest)} elsewhere: an all-reduce is as fast as the slowest link",
            "check cable, port and negotiation: ethtool IFACE; or train without them: --limit '!NAME,!NAME'",
            slow,
        )


def _rate(megabits: int) -> str:
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits} Mbit/s"


def rdma(cluster: Cluster) -> Iterator[Finding]:
    active = {
        node.name: any(device.state == "active" for device in node.facts.network.rdma) for node in cluster.runnable
    }
    without = tuple(name for name, has in active.items() if not has)
    if without and len(without) < len(active):
        yield Finding(
            "cluster.rdma_partial",
            "info",
            "These hosts have no active RDMA device and others do: all use TCP, as one network provider must fit all",
            "ibstat on these; or train without them for RDMA's sake: --limit '!NAME,!NAME'",
            without,
        )


def names(cluster: Cluster) -> Iterator[Finding]:
    """What the hosts say of each other's names; of its own name a host says loopback, and that is judged alone."""
    answers: dict[str, defaultdict[tuple[str, ...], list[str]]] = {m.name: defaultdict(list) for m in cluster.nodes}
    lost: defaultdict[str, list[str]] = defaultdict(list)
    # Every host has an answer for every other, so this is done once.
    for asker in cluster.nodes:
        for name, addresses in asker.facts.network.peers.items():
            if name == asker.name or name not in answers:
                continue
            if addresses:
                answers[name][addresses].append(asker.name)
            else:
                lost[asker.name].append(name)
    owners = {address: node.name for node in cluster.nodes for address in _own_addresses(node)}
    machines = {node.name: node.facts.machine or node.name for node in cluster.nodes}
    for name, found in answers.items():
        yield from _two_addresses(name, found)
        yield from _wrong(name, found, owners, machines)
    yield from _unresolved(lost)


def _two_addresses(name: str, answers: Mapping[tuple[str, ...], list[str]]) -> Iterator[Finding]:
    found = [set(addresses) for addresses in answers]
    if len(found) > 1 and not set.intersection(*found):
        yield Finding(
            "cluster.name_two_addresses",
            "warn",
            f"{name[:40]} leads to different addresses on different hosts "
            f"({few(sorted({min(one) for one in found}), 3)}): ranks look for it in different places, and hang",
            _NAMES_ASIDE,
            tuple(asker for askers in answers.values() for asker in askers),
        )


def _wrong(
    name: str, answers: Mapping[tuple[str, ...], list[str]], owners: Mapping[str, str], machines: Mapping[str, str]
) -> Iterator[Finding]:
    for addresses, askers in answers.items():
        address = next((one for one in addresses if _leads_astray(one, name, owners, machines)), None)
        if address is not None:
            yield Finding(
                "cluster.name_wrong",
                "warn",
                f"{name[:40]} leads to {address} here, which is "
                f"{owners.get(address, '')[:40] or 'this host itself'}: ranks would talk to the wrong machine, and "
                "hang",
                _NAMES_ASIDE,
                tuple(askers),
            )


def _own_addresses(node: Member) -> frozenset[str]:
    return frozenset(address.address for nic in node.facts.network.nics for address in joining(nic))


def _leads_astray(address: str, name: str, owners: Mapping[str, str], machines: Mapping[str, str]) -> bool:
    """Two names of one machine are told of elsewhere."""
    if address.startswith("127.") or address == "::1":
        return True
    return machines[owners.get(address, name)] != machines[name]


def _unresolved(lost: Mapping[str, list[str]]) -> Iterator[Finding]:
    """One finding for all who ask and all they don't find: which of them is which is in each host's facts."""
    if lost:
        missed = list(dict.fromkeys(name for names in lost.values() for name in names))
        yield Finding(
            "cluster.names_unresolved",
            "info",
            f"The name{'s' if len(missed) > 1 else ''} {few([name[:30] for name in missed], 3)} can't be resolved "
            "here: a launcher that uses names would stop with 'unknown host'",
            _NAMES_ASIDE,
            tuple(lost),
        )


def clocks(cluster: Cluster) -> Iterator[Finding]:
    """Against the middle one of all, so that our own clock doesn't matter."""
    known = [
        (node.name, node.context.skew, node.context.uncertainty or 0.0)
        for node in cluster.nodes
        if node.context.skew is not None
    ]
    if len(known) < 2:
        return
    middle = median_low(skew for _, skew, _ in known)
    doubt = min(unsure for _, skew, unsure in known if skew == middle)
    off = [(name, skew - middle) for name, skew, unsure in known if abs(skew - middle) - unsure - doubt > 1]
    if not off:
        return
    worst = max((gathered for _, gathered in off), key=abs)
    concerned = [name for name, _, _ in known] if len(known) == 2 else [name for name, _ in off]
    yield Finding(
        "cluster.clock_skew",
        "warn",
        f"{'These clocks differ' if len(known) == 2 else 'The clock is off'} by {_duration(abs(worst))}: logs can't "
        "be put in order, files look newer than now, and certificates may fail",
        "as root: timedatectl set-ntp true, or chronyc makestep",
        tuple(concerned),
    )


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


RULES: Final[tuple[Rule, ...]] = (
    no_network, same_address, several_networks, mtu, speed, iface_names, rdma, names, clocks,
)  # fmt: skip
