"""A host's place in the network: interfaces, addresses, names. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

NicKind = Literal[
    "ethernet", "infiniband", "bond", "vlan", "wifi",
    "loopback", "docker", "libvirt", "bridge", "veth", "tunnel", "unknown",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Address:
    address: str
    prefix: int
    scope: str = "global"

    @property
    def family(self) -> Literal[4, 6]:
        return 6 if ":" in self.address else 4


@dataclass(frozen=True, slots=True)
class Nic:
    name: str
    kind: NicKind = "unknown"
    state: str | None = None
    """up, down, unknown, as the kernel says."""
    mtu: int | None = None
    speed: int | None = None
    """Mbit/s; None where the driver doesn't say."""
    physical: bool | None = None
    """Whether there is a device behind it; a container's eth0 has none."""
    mac: str | None = None
    addresses: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True)
class Rdma:
    """An RDMA device's first port."""

    name: str
    state: str | None = None
    link: str | None = None
    """InfiniBand or Ethernet (RoCE)."""
    rate: str | None = None
    nics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    iface: str
    gateway: str | None = None


@dataclass(frozen=True, slots=True)
class Network:
    hostname: str | None = None
    canonical: str | None = None
    """The full name the resolver gives to the host's own."""
    resolves_to: tuple[str, ...] | None = None
    """The addresses of the host's own name; () where it doesn't resolve, None where we couldn't ask."""
    peers: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """The same of every other host's name; a name we couldn't ask for is left out."""
    nics: tuple[Nic, ...] = ()
    rdma: tuple[Rdma, ...] = ()
    default_route: Route | None = None
    port_range: tuple[int, int] | None = None
    """Where the kernel takes ports for outgoing connections from."""

    def nic(self, name: str) -> Nic | None:
        return next((nic for nic in self.nics if nic.name == name), None)
