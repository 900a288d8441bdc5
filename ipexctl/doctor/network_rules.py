"""Judge names, addresses, interfaces, ports and clocks, of one host and of several. Pure.

Messages avoid names and addresses where they can, so that 200 hosts with one setup give one finding.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from ipexctl.doctor.finding import (
    ClusterContext,
    ClusterRule,
    Finding,
    HostContext,
    HostRule,
    Level,
    few,
    groups,
    link_rate,
    odd_ones,
    open_ports,
)
from ipexctl.facts.facts import joining_addresses
from ipexctl.hosts.host import is_loopback
from ipexctl.hosts.internal_addresses import Network, common_networks
from ipexctl.node.common.fix import Fix
from ipexctl.text import rough_duration

_KINDS: Final = {"docker": "docker", "libvirt": "libvirt", "veth": "containers"}


def own_name(host: HostContext) -> Iterator[Finding]:
    """Warn if the host's own name resolves to nothing, to a loopback address, as some installers write, or to an
    address of another machine.

    gloo and MPI send the first address of that name to the others, which would connect to themselves or to nobody.
    """
    addresses = host.facts.network.resolves_to
    if addresses is None or host.alone:
        return
    own = host.facts.network.addresses
    main = host.nic
    iface = main.name if main else "IFACE"
    fix = f"as root, in /etc/hosts, set the address of its name to that of {iface} (ip addr show {iface})"
    meanwhile = f"; until then, ipexctl run sets GLOO_SOCKET_IFNAME={iface}"
    if not addresses:
        yield Finding(
            "name.unresolved",
            "warn",
            "Its own name does not resolve on the host itself: gloo falls back to loopback, and other hosts can't "
            "reach its ranks",
            fix + meanwhile,
        )
    elif is_loopback(addresses[0]):
        yield Finding(
            "name.loopback",
            "warn",
            f"Its own name resolves to {addresses[0]} on the host itself: with gloo, other hosts would connect to "
            "themselves and hang",
            fix + f", instead of {addresses[0]}" + meanwhile,
        )
    elif own and not own & set(addresses) and host.facts.has_finished("network"):
        yield Finding(
            "name.elsewhere",
            "warn",
            "Its own name resolves to an address this host doesn't have: gloo and MPI would send a wrong "
            "address to the others",
            fix + meanwhile,
        )


def bridges(host: HostContext) -> Iterator[Finding]:
    """Say that the host has bridges, such as Docker's, which oneCCL could choose. Without another interface this is a
    warning."""
    if host.alone:
        return
    main = host.nic
    inside = {
        _KINDS.get(nic.kind) or nic.name
        for nic in host.facts.network.nics
        if nic is not main and nic.kind != "loopback" and not joining_addresses(nic)
        if any(address.scope == "global" and address.family == 4 for address in nic.addresses)
    }
    if not inside:
        return
    # Docker's interface names differ between hosts; their kinds don't.
    message = f"This host has bridges ({few(sorted(inside), 3)}); oneCCL and libfabric may pick one and hang. "
    if main is None:
        yield Finding(
            "network.bridges",
            "warn",
            f"{message}No interface is known that other hosts could reach",
            "name the network the hosts share: --iface CIDR, or internal=ADDRESS in the hostfile",
        )
        return
    name = main.name
    yield Finding(
        "network.bridges",
        "info",
        f"{message}The interface to use is {name}",
        f"nothing to do under ipexctl run; elsewhere export FI_TCP_IFACE={name} CCL_KVS_IFACE={name} "
        f"GLOO_SOCKET_IFNAME={name}",
    )


def internal_address(host: HostContext) -> Iterator[Finding]:
    """Warn if the given address for other hosts is on no interface of this host."""
    own = host.facts.network.addresses
    given = host.internal
    if (
        given
        and own
        and given not in own
        and re.fullmatch(r"[0-9.]+|.*:.*", given)
        and host.facts.has_finished("network")
    ):
        yield Finding(
            "network.not_its_address",
            "warn",
            f"{given} is set as the address for other hosts, but no interface of this host has it: ranks can't listen "
            "on it",
            Fix("to see its addresses: `ip addr`; put one that the others reach after internal= in the hostfile"),
        )


def default_route(host: HostContext) -> Iterator[Finding]:
    """Say that the host has no default route, so that it can't download anything."""
    network = host.facts.network
    if host.facts.has_finished("kernel") and network.nics and network.default_route is None:
        yield Finding(
            "network.no_default_route",
            "info",
            "No default route: this host can't download wheels, models or data by itself",
            Fix(
                "`ipexctl install` sends wheels from another host, `ipexctl push hf:org/model` sends models of the "
                "Hugging Face Hub"
            ),
        )


def link(host: HostContext) -> Iterator[Finding]:
    """Warn if the hosts would train over wifi, a tunnel or less than 1 Gbit/s; below 10 Gbit/s, say how long gradients
    take."""
    nic = None if host.alone else host.nic
    if nic is None:
        return
    if nic.kind in ("wifi", "tunnel"):
        yield Finding(
            "network.medium",
            "warn",
            f"The hosts would train over {nic.name}, {'wifi' if nic.kind == 'wifi' else 'a tunnel or VPN'}: "
            "every step sends gradients over it, which is slow",
            "choose a wired network that all hosts share: --iface CIDR",
        )
    if nic.speed is not None and nic.speed < 10_000:
        level: Level = "warn" if nic.speed < 1000 else "info"
        yield Finding(
            "network.slow_link",
            level,
            f"{nic.name} runs at {link_rate(nic.speed)}: 100 MB of gradients take about {800 / nic.speed:.1f} s per "
            "step, perhaps most of the step's time",
            "use a faster network if there is one (--iface CIDR), larger batches or gradient accumulation",
        )


def firewall(host: HostContext) -> Iterator[Finding]:
    """Say that a firewall's service runs. Its rules in the kernel do not count, because Docker loads some, too."""
    services = [name for name in host.facts.security.firewall if name in ("ufw", "firewalld")]
    if not services or host.alone:
        return
    yield Finding(
        "network.firewall",
        "info",
        f"{' and '.join(services)} runs on this host: ranks listen on high ports, and if these ports are closed, "
        "training hangs when it starts",
        "nothing to do unless doctor also finds network.port_closed; then "
        + open_ports([host.name], {host.name: host.internal or ""}, {host.name: host.facts}),
    )


def port_range(host: HostContext) -> Iterator[Finding]:
    """Warn if less than 2,000 ports are available for connections."""
    span = host.facts.network.port_range
    if span is not None and span[1] - span[0] < 2000:
        yield Finding(
            "network.few_ports",
            "warn",
            f"Only ports {span[0]}-{span[1]} are available for connections: many ranks use them up ('Cannot assign "
            "requested address')",
            Fix(
                "if no firewall rule depends on this range, as root: `sysctl net.ipv4.ip_local_port_range='32768 "
                "60999'`"
            ),
        )


def rdma(host: HostContext) -> Iterator[Finding]:
    """Say that the host has RDMA devices, but none with a link."""
    down = [device.name for device in host.facts.network.rdma if device.state not in (None, "active")]
    if down and not host.facts.network.has_rdma:
        yield Finding(
            "rdma.inactive",
            "info",
            f"{few(down, 3)}: an RDMA device without a link, so training goes over TCP",
            "check cable and subnet manager: ibstat",
        )


HOST_RULES: Final[tuple[HostRule, ...]] = (
    default_route, port_range, rdma, own_name, bridges, internal_address, link, firewall,
)  # fmt: skip


_NAMES: Final = "as root, write the same /etc/hosts on all hosts; ipexctl run does not need names"


def no_network(cluster: ClusterContext) -> Iterator[Finding]:
    """Report a failure if the hosts have no network in common, with the refusal that a run would give."""
    if cluster.refusal is not None:
        reason = cluster.refusal.reason
        yield Finding(
            "cluster.no_common_network",
            "fail",
            f"{reason[:1].upper()}{reason[1:]}, so no run starts",
            cluster.refusal.fix,
            cluster.refusal.hosts,
        )


def several_networks(cluster: ClusterContext) -> Iterator[Finding]:
    """Say which of several common networks training would use; warn if another one is at least twice as fast.

    Nothing is said if the user named a network, or internal addresses of hosts. IPv6 next to IPv4 is not a second
    network.
    """
    if cluster.refusal or cluster.iface or any(node.host.internal for node in cluster.nodes):
        return
    shared = common_networks(cluster.addresses)
    shared = tuple(network for network in shared if network.version == 4) or shared
    first = cluster.nodes[0]
    chosen = next((network for network in shared if _speed_on(first, network, training=True) is not None), None)
    if len(shared) < 2 or chosen is None:
        return
    others = [network for network in shared if network != chosen]
    speeds = {network: min(_speed_on(node, network) or 0 for node in cluster.nodes) for network in shared}
    faster = next((network for network in others if speeds[chosen] and speeds[network] >= 2 * speeds[chosen]), None)
    yield Finding(
        "cluster.several_networks",
        "warn" if faster else "info",
        f"All hosts share {few([str(network) for network in shared], 3)}; training would use {chosen}"
        + (f", which is slower than {faster}" if faster else ""),
        f"--iface {faster or others[0]} chooses another network",
        tuple(node.name for node in cluster.nodes),
    )


def _speed_on(node: HostContext, network: Network, *, training: bool = False) -> int | None:
    """Return the speed of a host's interface in the network in Mbit/s, 0 if unknown; None if it has no interface there.
    `training`: look only at the interface that training would use."""
    nics = node.facts.network.nics
    if training:
        nics = (node.nic,) if node.nic else ()
    for nic in nics:
        if any(address.network == network for address in joining_addresses(nic)):
            return nic.speed or 0
    return None


def same_address(cluster: ClusterContext) -> Iterator[Finding]:
    """Report a failure if different machines have one internal address."""
    by_address: defaultdict[str, list[HostContext]] = defaultdict(list)
    for node in cluster.nodes:
        if node.internal:
            by_address[node.internal].append(node)
    for address, nodes in by_address.items():
        machines = {node.facts.machine for node in nodes}
        if len(nodes) > 1 and (len(machines) > 1 or None in machines):
            yield Finding(
                "cluster.same_address",
                "fail",
                f"Different hosts have the address {address}: data for one host arrives at another, and ranks never "
                "connect",
                "give each host its own address (ip addr shows them), and internal=ADDRESS in the hostfile",
                tuple(node.name for node in nodes),
            )


def iface_names(cluster: ClusterContext) -> Iterator[Finding]:
    """Say that the common network's interface has different names on the hosts."""
    by_name = groups(cluster.nodes, lambda node: node.nic.name if node.nic else None)
    if len(by_name) > 1 and not cluster.refusal:
        usual, others, names = odd_ones(by_name)
        yield Finding(
            "cluster.iface_names_differ",
            "info",
            f"The common network's interface is {few(others, 3)}, but {usual} on the other hosts: with one "
            "FI_TCP_IFACE for all, ranks would hang",
            "nothing to do under ipexctl run, which sets it for each host",
            names,
        )


def mtu(cluster: ClusterContext) -> Iterator[Finding]:
    """Warn of different MTUs, with which large messages may be lost."""
    by_mtu = groups(cluster.nodes, lambda node: node.nic.mtu if node.nic else None)
    if len(by_mtu) > 1 and not cluster.refusal:
        usual, others, names = odd_ones(by_mtu)
        yield Finding(
            "cluster.mixed_mtu",
            "warn",
            f"The MTU is {few([str(size) for size in others], 3)} bytes, but {usual} on the other hosts: ssh "
            "works, but large messages may be lost, and training hangs",
            Fix(
                f"as root, if the switch supports such packets: `ip link set dev {_common_nic(cluster, names)} mtu "
                f"{usual}`"
            ),
            names,
        )


def _common_nic(cluster: ClusterContext, names: Collection[str]) -> str:
    nics = {node.nic.name for node in cluster.nodes if node.name in names and node.nic}
    return nics.pop() if len(nics) == 1 else "IFACE"


def speed(cluster: ClusterContext) -> Iterator[Finding]:
    """Warn of hosts with slower links than the fastest, for which every all-reduce waits."""
    by_speed = groups(cluster.nodes, lambda node: node.nic.speed if node.nic else None)
    if len(by_speed) > 1 and not cluster.refusal:
        fastest, slowest = max(by_speed), min(by_speed)
        speeds = {name: rate for rate, names in by_speed.items() for name in names}
        slow = tuple(node.name for node in cluster.nodes if speeds.get(node.name, fastest) < fastest)
        yield Finding(
            "cluster.mixed_speed",
            "warn",
            f"The link has {link_rate(slowest)}, but {link_rate(fastest)} elsewhere: an all-reduce is as fast as the "
            "slowest link",
            f"check cable, port and negotiation: ethtool {_common_nic(cluster, slow)}; or train without these hosts: "
            "--limit '!NAME,!NAME'",
            slow,
        )


def some_have_rdma(cluster: ClusterContext) -> Iterator[Finding]:
    """Say which hosts have no RDMA if others do, so that all use TCP."""
    without = tuple(node.name for node in cluster.runnable if not node.facts.network.has_rdma)
    if without and len(without) < len(cluster.runnable):
        yield Finding(
            "cluster.rdma_partial",
            "info",
            "These hosts have no active RDMA device, but others do: all use TCP, because all need the same network "
            "provider",
            "run ibstat on these hosts; or train without them, over RDMA: --limit '!NAME,!NAME'",
            without,
        )


def names(cluster: ClusterContext) -> Iterator[Finding]:
    """Warn if a host's name resolves to different addresses on different hosts, or to a wrong machine; say if it does
    not resolve."""
    answers: dict[str, defaultdict[tuple[str, ...], list[str]]] = {m.name: defaultdict(list) for m in cluster.nodes}
    lost: defaultdict[str, list[str]] = defaultdict(list)
    for node in cluster.nodes:
        own = node.name
        for name, addresses in node.facts.network.peers.items():
            if name == own or name not in answers:
                continue
            if addresses:
                answers[name][addresses].append(own)
            else:
                lost[own].append(name)
    owners = {
        address.address: node.name
        for node in cluster.nodes
        for nic in node.facts.network.nics
        for address in joining_addresses(nic)
    }
    machines = {node.name: node.facts.machine or node.name for node in cluster.nodes}
    for name, of_name in answers.items():
        yield from _two_addresses(name, of_name)
        yield from _wrong(name, of_name, owners, machines)
    yield from _unresolved(lost)


def _two_addresses(name: str, answers: Mapping[tuple[str, ...], list[str]]) -> Iterator[Finding]:
    """Warn if hosts have no address in common for a name. `answers`: addresses → hosts that resolve the name to
    them."""
    address_sets = [set(addresses) for addresses in answers]
    if len(address_sets) > 1 and not set.intersection(*address_sets):
        yield Finding(
            "cluster.name_two_addresses",
            "warn",
            f"{name[:40]} resolves to different addresses on different hosts "
            f"({few(sorted({min(addresses) for addresses in address_sets}), 3)}): ranks connect to different "
            "machines and hang",
            _NAMES,
            tuple(host for hosts in answers.values() for host in hosts),
        )


def _wrong(
    name: str, answers: Mapping[tuple[str, ...], list[str]], owners: Mapping[str, str], machines: Mapping[str, str]
) -> Iterator[Finding]:
    """Warn if a name leads to another host, or to the host that asks. `owners`: address → the host that has it.
    `machines`: host → its machine."""
    for addresses, hosts in answers.items():
        address = next((address for address in addresses if _is_wrong(address, name, owners, machines)), None)
        if address is not None:
            yield Finding(
                "cluster.name_wrong",
                "warn",
                f"{name[:40]} resolves to {address} on this host, which belongs to "
                f"{owners.get(address, '')[:40] or 'this host itself'}: ranks would connect to the wrong machine and "
                "hang",
                _NAMES,
                tuple(hosts),
            )


def _is_wrong(address: str, name: str, owners: Mapping[str, str], machines: Mapping[str, str]) -> bool:
    if address.startswith("127.") or address == "::1":
        return True
    return machines[owners.get(address, name)] != machines[name]


def _unresolved(lost: Mapping[str, list[str]]) -> Iterator[Finding]:
    """Say which names can't be resolved. `lost`: host → names that it can't resolve."""
    if lost:
        missing = list(dict.fromkeys(name for names in lost.values() for name in names))
        yield Finding(
            "cluster.names_unresolved",
            "info",
            f"The name{'s' if len(missing) > 1 else ''} {few([name[:30] for name in missing], 3)} can't be resolved "
            "on these hosts: a launcher that uses names would fail with 'unknown host'",
            _NAMES,
            tuple(lost),
        )


def clocks(cluster: ClusterContext) -> Iterator[Finding]:
    """Warn of clocks that differ by more than a second. They are compared with their median, so the control machine's
    clock doesn't matter."""
    known = [(node.name, node.skew, node.uncertainty or 0.0) for node in cluster.nodes if node.skew is not None]
    if len(known) < 2:
        return
    median = sorted(skew for _, skew, _ in known)[(len(known) - 1) // 2]
    uncertainty = min(unsure for _, skew, unsure in known if skew == median)
    off = [(name, skew - median) for name, skew, unsure in known if abs(skew - median) - unsure - uncertainty > 1]
    if not off:
        return
    worst = max((difference for _, difference in off), key=abs)
    concerned = [name for name, _, _ in known] if len(known) == 2 else [name for name, _ in off]
    yield Finding(
        "cluster.clock_skew",
        "warn",
        f"{'These clocks differ' if len(known) == 2 else 'The clock is off'} by {rough_duration(abs(worst))}: the "
        "order of log lines is wrong, files may have times in the future, and certificates may be refused",
        Fix("as root: `timedatectl set-ntp true`, or chronyc makestep"),
        tuple(concerned),
    )


CLUSTER_RULES: Final[tuple[ClusterRule, ...]] = (
    no_network, same_address, several_networks, mtu, speed, iface_names, some_have_rdma, names, clocks,
)  # fmt: skip
