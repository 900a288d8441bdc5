"""Which of a host's addresses others can be behind, and which they reach it by: facts, as `hosts.internal` wants them.

Pure.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ipexctl.hosts import internal
from ipexctl.hosts.internal import HostAddresses, internal_addresses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.facts.network import Nic
    from ipexctl.hosts.host import Host
    from ipexctl.hosts.internal import NoCommonNetwork

_INSIDE_ONE_MACHINE: Final = ("loopback", "docker", "libvirt", "veth")


@lru_cache(maxsize=8192)
def _joining(interface: str, address: str, prefix: int) -> internal.Nic | None:
    """Remembered: every rule asks, and to understand an address takes as long as all the rest of a rule."""
    nic = internal.Nic(interface, address, prefix)
    return nic if nic.joins_hosts else None


def joining(nic: Nic) -> tuple[internal.Nic, ...]:
    """An interface's addresses behind which other machines can be; none for a bridge of containers or guests."""
    if nic.kind in _INSIDE_ONE_MACHINE:
        return ()
    each = (_joining(nic.name, address.address, address.prefix) for address in nic.addresses)
    return tuple(address for address in each if address)


def addresses_of(facts: Facts, reached: str | None) -> HostAddresses:
    """A host's addresses as the choice of a common network wants them, those of bridges inside it left out."""
    return HostAddresses(tuple(address for nic in facts.network.nics for address in joining(nic)), reached)


def addresses_among(
    hosts: Sequence[Host], facts: Mapping[str, Facts], iface: str | None
) -> dict[str, str] | NoCommonNetwork:
    """The addresses by which the hosts that answered reach one another."""
    answered = [host for host in hosts if host.name in facts]
    known = {host.name: addresses_of(facts[host.name], host.address) for host in answered}
    return internal_addresses(known, answered, iface)
