"""A host's network: interfaces, addresses, names. Values only."""

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
    """up, down or unknown, from the kernel."""
    mtu: int | None = None
    speed: int | None = None
    """Mbit/s; None if the driver reports none."""
    physical: bool | None = None
    """Whether it belongs to a device; a container's eth0 does not."""
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
    """The canonical name of the host's own name."""
    resolves_to: tuple[str, ...] | None = None
    """The addresses of the host's own name; () if it doesn't resolve, None if unknown."""
    peers: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """The addresses of each other host's name; a name that could not be looked up is missing."""
    nics: tuple[Nic, ...] = ()
    rdma: tuple[Rdma, ...] = ()
    default_route: Route | None = None
    port_range: tuple[int, int] | None = None
    """The kernel's range of ports for outgoing connections."""

    def nic(self, name: str) -> Nic | None:
        return next((nic for nic in self.nics if nic.name == name), None)
