"""The addresses by which hosts reach one another, chosen by `hosts.internal` from facts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.hosts import internal
from ipexctl.hosts.internal import HostAddresses, internal_addresses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.facts.network import Nic
    from ipexctl.hosts.host import Host
    from ipexctl.refusal import Refusal

_LOCAL_KINDS: Final = ("loopback", "docker", "libvirt", "veth")


def joining(nic: Nic) -> tuple[internal.InterfaceAddress, ...]:
    """The addresses of an interface that can lead to other machines; none for bridges of containers or guests."""
    if nic.kind in _LOCAL_KINDS:
        return ()
    candidates = (internal.InterfaceAddress(nic.name, address.address, address.prefix) for address in nic.addresses)
    return tuple(address for address in candidates if address.joins_hosts)


def addresses_of(facts: Facts, address: str) -> HostAddresses:
    """A host's addresses for the choice of a common network, without those of bridges inside it.

    `address` is the control machine's for it: often a name, or an address that is translated on the way.
    """
    nics = tuple(address for nic in facts.network.nics for address in joining(nic))
    return HostAddresses(nics, facts.network.reached or address)


def addresses_among(hosts: Sequence[Host], facts: Mapping[str, Facts], iface: str | None) -> dict[str, str] | Refusal:
    """The addresses by which the probed hosts reach one another."""
    probed = [host for host in hosts if host.name in facts]
    known = {host.name: addresses_of(facts[host.name], host.address) for host in probed}
    return internal_addresses(known, probed, iface)
