"""Which address of a host the other hosts reach it by. Pure: the addresses are handed in, nothing is asked.

How a host's interfaces are read lives with whoever asks it.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ipexctl.hosts.host import Host

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NOT_A_NETWORK_OF_HOSTS: Final = re.compile(
    r"lo[0-9]*|docker.*|br-[0-9a-f]+|veth.*|virbr.*|vmnet.*|vnet.*|cni.*|podman.*|lxcbr.*|lxdbr.*|flannel.*|cali.*"
    r"|tunl.*|kube-.*|cilium.*|dummy.*|nerdctl.*"
)


@dataclass(frozen=True, slots=True)
class Nic:
    """One address of one interface; an interface with two addresses is two of these."""

    interface: str
    address: str
    prefix: int

    @property
    def network(self) -> Network:
        return ipaddress.ip_interface(f"{self.address}/{self.prefix}").network

    @property
    def joins_hosts(self) -> bool:
        """Whether other machines can be behind it: no loopback, no containers' or guests' bridge, no link-local."""
        parsed = ipaddress.ip_address(self.address)
        ours_alone = parsed.is_loopback or parsed.is_link_local or parsed.is_multicast or parsed.is_unspecified
        return not ours_alone and not _NOT_A_NETWORK_OF_HOSTS.fullmatch(self.interface.partition("@")[0])


@dataclass(frozen=True, slots=True)
class HostAddresses:
    """What one host says of itself: its addresses, and which of them we came in by."""

    nics: tuple[Nic, ...]
    reached: str | None = None

    @property
    def reached_nic(self) -> Nic | None:
        return next((nic for nic in self.nics if nic.address == self.reached), None)


@dataclass(frozen=True, slots=True)
class NoCommonNetwork:
    """Why no address can be chosen, whom it is about, and what to do."""

    reason: str
    fix: str
    hosts: tuple[str, ...]


class InterfaceChoice:
    """What `--iface` says: an interface's name, or a network by its CIDR."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._network: Network | None = None
        if "/" in text:
            try:
                self._network = ipaddress.ip_network(text, strict=False)
            except ValueError:
                raise UserError(
                    f"--iface {quoted(text)} is no network", fix="an interface's name such as eth1, or 10.1.0.0/24"
                ) from None
        elif not re.fullmatch(r"[^\s/]{1,15}", text):
            raise UserError(
                f"--iface {quoted(text)} is no interface's name", fix="a name such as eth1, or a network: 10.1.0.0/24"
            )

    def covers(self, nic: Nic) -> bool:
        if self._network is not None:
            return ipaddress.ip_address(nic.address) in self._network
        return nic.interface == self.text


def internal_addresses(
    addresses: Mapping[str, HostAddresses], hosts: Sequence[Host], iface: str | None = None
) -> dict[str, str] | NoCommonNetwork:
    """For each host the address the others use: the file's, `--iface`'s, else the one on a subnet all share.

    The subnet we reached them by is preferred where all share it; then IPv4, in the order of the first host's
    interfaces. Hosts of which we have no addresses must have one in the file.
    """
    given = {host.name: host.internal for host in hosts if host.internal}
    asked = [host.name for host in hosts if host.name not in given and host.name in addresses]
    if not asked:
        return {name: address for name, address in given.items() if name in addresses}
    if iface is not None:
        chosen = _by_choice(addresses, asked, InterfaceChoice(iface))
    elif len(addresses) == 1:
        chosen = _alone(addresses[asked[0]], asked[0])
    else:
        chosen = _by_subnet(addresses, asked, given)
    if isinstance(chosen, NoCommonNetwork):
        return chosen
    return {host.name: given.get(host.name) or chosen[host.name] for host in hosts if host.name in addresses}


def common_networks(addresses: Mapping[str, HostAddresses]) -> tuple[Network, ...]:
    """The subnets in which every host has an address of its own, best first."""
    everyone = tuple(addresses.values())
    if not everyone:
        return ()
    first = tuple(dict.fromkeys(nic.network for nic in everyone[0].nics if nic.joins_hosts))
    found = [network for network in first if _is_shared(network, everyone)]
    reached = {nic.network for host in everyone if (nic := host.reached_nic)}
    return tuple(sorted(found, key=lambda network: (reached != {network}, network.version)))


def address_in(addresses: HostAddresses, network: Network) -> str | None:
    """A host's address in that subnet, the one we came in by first."""
    inside = [nic.address for nic in addresses.nics if nic.network == network and nic.joins_hosts]
    return addresses.reached if addresses.reached in inside else next(iter(inside), None)


def _is_shared(network: Network, everyone: Iterable[HostAddresses]) -> bool:
    # 172.17.0.1 on every machine is a bridge inside each of them, whatever it is called.
    inside = [{nic.address for nic in host.nics if nic.network == network and nic.joins_hosts} for host in everyone]
    return network.num_addresses > 1 and all(inside) and len(set().union(*inside)) == sum(map(len, inside))


def _by_choice(
    addresses: Mapping[str, HostAddresses], asked: Sequence[str], choice: InterfaceChoice
) -> dict[str, str] | NoCommonNetwork:
    chosen: dict[str, str] = {}
    without = []
    for name in asked:
        fitting = [nic for nic in addresses[name].nics if choice.covers(nic)]
        fitting.sort(key=lambda nic: (not nic.joins_hosts, ":" in nic.address))
        if fitting:
            chosen[name] = fitting[0].address
        else:
            without.append(name)
    if without:
        from ipexctl.hosts.nodeset import fold

        have = {nic.interface for name in without for nic in addresses[name].nics if nic.joins_hosts}
        seen = f" (it has {', '.join(sorted(have))})" if have and len(without) == 1 else ""
        return NoCommonNetwork(
            f"{fold(without)} has no address on --iface {choice.text}{seen}",
            "name a network that every host is on, or give those hosts internal=ADDRESS in the hostfile",
            tuple(without),
        )
    return chosen


def _alone(host: HostAddresses, name: str) -> dict[str, str] | NoCommonNetwork:
    nic = host.reached_nic or next((nic for nic in host.nics if nic.joins_hosts), None)
    return {name: nic.address if nic else "127.0.0.1"}


def _by_subnet(
    addresses: Mapping[str, HostAddresses], asked: Sequence[str], given: Mapping[str, str]
) -> dict[str, str] | NoCommonNetwork:
    # What the file says for some hosts says which network it is for the others.
    relevant = {
        name: HostAddresses(_same_nic(host, given[name]), host.reached) if name in given else host
        for name, host in addresses.items()
    }
    relevant = {name: host for name, host in relevant.items() if host.nics or name not in given}
    networks = common_networks(relevant)
    if networks:
        return {name: address_in(addresses[name], networks[0]) or "" for name in asked}
    routed = {name: host.reached_nic for name, host in relevant.items()}
    if all(nic and nic.network.num_addresses == 1 for nic in routed.values()):
        # A cloud that gives every machine a subnet of its own routes between them.
        return {name: nic.address for name in asked if (nic := routed[name])}
    return _refusal(relevant)


def _same_nic(host: HostAddresses, address: str) -> tuple[Nic, ...]:
    return tuple(nic for nic in host.nics if nic.address == address)


def _refusal(addresses: Mapping[str, HostAddresses]) -> NoCommonNetwork:
    """Name the hosts that stand apart from the subnet most of them share."""
    from ipexctl.hosts.nodeset import fold

    nodes: dict[Network, list[str]] = {}
    for name, host in addresses.items():
        for network in {nic.network for nic in host.nics if nic.joins_hosts}:
            nodes.setdefault(network, []).append(name)
    fix = "give each host internal=ADDRESS in the hostfile, or --iface CIDR with a network that holds them all"
    if not nodes:
        return NoCommonNetwork("no host has an address that others could use", fix, tuple(addresses))
    network, inside = max(nodes.items(), key=lambda item: len(item[1]))
    outside = [name for name in addresses if name not in inside]
    if len(inside) == 1 or not outside:
        return NoCommonNetwork("the hosts share no network", fix, tuple(addresses))
    return NoCommonNetwork(
        f"the hosts share no network: {fold(inside)} {'is' if len(inside) == 1 else 'are'} on {network}, "
        f"{fold(outside)} {'is' if len(outside) == 1 else 'are'} not",
        fix,
        tuple(outside),
    )
