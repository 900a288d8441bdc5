"""Choose the address by which other hosts reach a host; it is seldom the one that ssh uses.

The hostfile's `internal=` comes first, then --iface, then a subnet where each host has an address of its own: the
control machine's before others, IPv4 before IPv6. Container bridges are left out: 172.17.0.1 is a bridge inside each
host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from ipexctl.errors import Refusal, UserError
from ipexctl.hosts.host import Host, quote
from ipexctl.hosts.nodeset import fold

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_LOCAL_INTERFACES: Final = re.compile(
    r"lo[0-9]*|docker.*|br-[0-9a-f]+|veth.*|virbr.*|vmnet.*|vnet.*|cni.*|podman.*|lxcbr.*|lxdbr.*|flannel.*|cali.*"
    r"|tunl.*|kube-.*|cilium.*|dummy.*|nerdctl.*"
)


@dataclass(frozen=True, slots=True)
class InterfaceAddress:
    """One address of an interface. An interface with two addresses has two entries."""

    interface: str
    address: str
    prefix: int

    @property
    def network(self) -> Network:
        """The network to which the address belongs."""
        return _network_of(self.address, self.prefix)

    @property
    def joins_hosts(self) -> bool:
        """True unless the address is loopback, link-local or on a bridge for containers or guests."""
        return not _is_local(self.address) and not _LOCAL_INTERFACES.fullmatch(self.interface.partition("@")[0])


@lru_cache(maxsize=8192)
def _network_of(address: str, prefix: int) -> Network:
    """Return the network of an address. Cached, because every rule about several hosts calls this, and parsing
    addresses takes most of the rules' time."""
    return ipaddress.ip_interface(f"{address}/{prefix}").network


@lru_cache(maxsize=8192)
def _is_local(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return parsed.is_loopback or parsed.is_link_local or parsed.is_multicast or parsed.is_unspecified


@dataclass(frozen=True, slots=True)
class HostAddresses:
    nics: tuple[InterfaceAddress, ...]
    reached: str | None = None

    @property
    def reached_nic(self) -> InterfaceAddress | None:
        """The interface with the address by which ssh reaches the host; None behind a NAT or a bastion."""
        return next((nic for nic in self.nics if nic.address == self.reached), None)


class InterfaceChoice:
    def __init__(self, text: str) -> None:
        self.text = text
        self._network: Network | None = None
        if "/" in text:
            try:
                self._network = ipaddress.ip_network(text, strict=False)
            except ValueError:
                raise UserError(
                    f"--iface {quote(text)} is not a network", fix="an interface's name such as eth1, or 10.1.0.0/24"
                ) from None
        elif not re.fullmatch(r"[^\s/]{1,15}", text):
            raise UserError(
                f"--iface {quote(text)} is not an interface name", fix="a name such as eth1, or a network: 10.1.0.0/24"
            )

    def covers(self, nic: InterfaceAddress) -> bool:
        """True if the interface is the one that was asked for, by its name or by its network."""
        if self._network is not None:
            return ipaddress.ip_address(nic.address) in self._network
        return nic.interface == self.text


def internal_addresses(
    addresses: Mapping[str, HostAddresses], hosts: Sequence[Host], iface: str | None = None
) -> dict[str, str] | Refusal:
    """Choose each host's address for the others, or refuse and name the hosts outside the common subnet."""
    given = {host.name: host.internal for host in hosts if host.internal}
    names = [host.name for host in hosts if host.name not in given and host.name in addresses]
    if not names:
        return {name: address for name, address in given.items() if name in addresses}
    if iface is not None:
        chosen = _by_choice(addresses, names, InterfaceChoice(iface))
    elif len(addresses) == 1:
        host = addresses[names[0]]
        nic = host.reached_nic or next((nic for nic in host.nics if nic.joins_hosts), None)
        chosen = {names[0]: nic.address if nic else "127.0.0.1"}
    else:
        chosen = _by_subnet(addresses, names, given)
    if isinstance(chosen, Refusal):
        return chosen
    return {host.name: given.get(host.name) or chosen[host.name] for host in hosts if host.name in addresses}


def common_networks(addresses: Mapping[str, HostAddresses]) -> tuple[Network, ...]:
    """Return the subnets where every host has an address of its own, the best first."""
    all_hosts = tuple(addresses.values())
    if not all_hosts:
        return ()
    first = tuple(dict.fromkeys(nic.network for nic in all_hosts[0].nics if nic.joins_hosts))
    shared = [network for network in first if _is_shared(network, all_hosts)]
    reached = {nic.network for host in all_hosts if (nic := host.reached_nic)}
    return tuple(sorted(shared, key=lambda network: (reached != {network}, network.version)))


def address_in(addresses: HostAddresses, network: Network) -> str | None:
    """Return the host's address in this network, the one that ssh uses first; None if it has none there."""
    members = [nic.address for nic in addresses.nics if nic.network == network and nic.joins_hosts]
    return addresses.reached if addresses.reached in members else next(iter(members), None)


def _is_shared(network: Network, all_hosts: Iterable[HostAddresses]) -> bool:
    """Return True if every host has an address in the network, and no two hosts have the same one."""
    if network.num_addresses <= 1:
        return False
    members: list[set[str]] = []
    for host in all_hosts:
        in_network = [nic for nic in host.nics if nic.network == network]
        members.append({nic.address for nic in in_network if nic.joins_hosts})
    # 172.17.0.1 on every machine is a bridge inside each of them, whatever its name.
    are_distinct = len(set().union(*members)) == sum(map(len, members))
    return all(members) and are_distinct


def _by_choice(
    addresses: Mapping[str, HostAddresses], names: Sequence[str], choice: InterfaceChoice
) -> dict[str, str] | Refusal:
    """Return each host's address on the chosen interface or network; a Refusal that names the hosts without one."""
    chosen: dict[str, str] = {}
    without = []
    for name in names:
        matching = [nic for nic in addresses[name].nics if choice.covers(nic)]
        matching.sort(key=lambda nic: (not nic.joins_hosts, ":" in nic.address))
        if matching:
            chosen[name] = matching[0].address
        else:
            without.append(name)
    if without:
        interfaces = {nic.interface for name in without for nic in addresses[name].nics if nic.joins_hosts}
        note = f" (it has {', '.join(sorted(interfaces))})" if interfaces and len(without) == 1 else ""
        return Refusal(
            f"{fold(without)} has no address on --iface {choice.text}{note}",
            "name a network that every host is on, or give those hosts internal=ADDRESS in the hostfile",
            tuple(without),
        )
    return chosen


def _by_subnet(
    addresses: Mapping[str, HostAddresses], names: Sequence[str], given: Mapping[str, str]
) -> dict[str, str] | Refusal:
    """Return each host's address in the best common subnet. Hosts without one may still each have a routed address of
    their own, as in some clouds. Else return a Refusal. `given`: addresses that the file sets."""
    # Addresses given in the file determine the network for the other hosts.
    relevant = dict(addresses)
    for name in given.keys() & addresses.keys():
        nics = tuple(nic for nic in addresses[name].nics if nic.address == given[name])
        relevant[name] = HostAddresses(nics, addresses[name].reached)
        if not nics:
            del relevant[name]
    networks = common_networks(relevant)
    if networks:
        return {name: address_in(addresses[name], networks[0]) or "" for name in names}
    routed = {name: host.reached_nic for name, host in relevant.items()}
    if all(nic and nic.network.num_addresses == 1 for nic in routed.values()):
        # Some clouds give each machine its own subnet and route between them.
        return {name: nic.address for name in names if (nic := routed[name])}
    return _no_common_network(relevant)


def _no_common_network(addresses: Mapping[str, HostAddresses]) -> Refusal:
    """Return the Refusal for hosts that share no network, with the most likely reason."""
    nodes: dict[Network, list[str]] = {}
    for name, host in addresses.items():
        for network in {nic.network for nic in host.nics if nic.joins_hosts}:
            nodes.setdefault(network, []).append(name)
    named: dict[str, list[str]] = {}
    for name, host in addresses.items():
        named.setdefault(host.reached or name, []).append(name)
    for address, names in named.items():
        if len(names) > 1:  # behind NAT, two machines may have the same address, too
            reason = f"{fold(names)} have the same address, {address}: most likely they are one machine"
            return Refusal(reason, "keep one of the names; for more ranks there: NAME slots=2", tuple(names))
    fix = "give each host internal=ADDRESS in the hostfile, or --iface CIDR with a network that holds them all"
    if not nodes:
        return Refusal("no host has an address that others could use", fix, tuple(addresses))
    network, members = max(nodes.items(), key=lambda item: len(item[1]))
    outside = [name for name in addresses if name not in members]
    if len(members) == 1 or not outside:
        return Refusal("the hosts share no network", fix, tuple(addresses))
    return Refusal(
        f"the hosts share no network: {fold(members)} {'is' if len(members) == 1 else 'are'} on {network}, "
        f"{fold(outside)} {'is' if len(outside) == 1 else 'are'} not",
        fix,
        tuple(outside),
    )
