"""Chooses addresses between hosts from facts, with `hosts.internal`. Pure."""

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
    if nic.kind in _LOCAL_KINDS:
        return ()
    candidates = (internal.InterfaceAddress(nic.name, address.address, address.prefix) for address in nic.addresses)
    return tuple(address for address in candidates if address.joins_hosts)


def addresses_of(facts: Facts, address: str) -> HostAddresses:
    """`address` is the control machine's for the host: often a name, or translated on the way."""
    nics = tuple(address for nic in facts.network.nics for address in joining(nic))
    return HostAddresses(nics, facts.network.reached or address)


def addresses_among(hosts: Sequence[Host], facts: Mapping[str, Facts], iface: str | None) -> dict[str, str] | Refusal:
    probed = [host for host in hosts if host.name in facts]
    known = {host.name: addresses_of(facts[host.name], host.address) for host in probed}
    return internal_addresses(known, probed, iface)
