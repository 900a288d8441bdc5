"""Parse what the probe prints about a host's interfaces, addresses and names. Nothing here touches a host. Temporary
and deprecated addresses are left out, because they change during a run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, ip_address
from typing import Final, Literal, NamedTuple

from ipexctl.facts.probe import Answers, natural, settings

NicKind = Literal[
    "ethernet", "infiniband", "bond", "vlan", "wifi",
    "loopback", "docker", "libvirt", "bridge", "veth", "tunnel", "unknown",
]  # fmt: skip


class Address(NamedTuple):
    address: str
    prefix: int
    scope: str = "global"

    @property
    def family(self) -> Literal[4, 6]:
        """4 or 6, of IP."""
        return 6 if ":" in self.address else 4


class Nic(NamedTuple):
    name: str
    kind: NicKind = "unknown"
    state: str | None = None
    mtu: int | None = None
    speed: int | None = None
    """Mbit/s; None if the driver reports no speed."""
    physical: bool | None = None
    """True if the interface belongs to a device; a container's eth0 does not."""
    mac: str | None = None
    addresses: tuple[Address, ...] = ()


class Rdma(NamedTuple):
    name: str
    state: str | None = None
    link: str | None = None
    rate: str | None = None
    nics: tuple[str, ...] = ()


class Route(NamedTuple):
    iface: str
    gateway: str | None = None


class Network(NamedTuple):
    hostname: str | None = None
    canonical: str | None = None
    resolves_to: tuple[str, ...] | None = None
    """Addresses of the host's own name; () if it doesn't resolve, None if unknown."""
    peers: Mapping[str, tuple[str, ...]] = {}
    """Other host's name → addresses; missing if the name could not be looked up."""
    nics: tuple[Nic, ...] = ()
    rdma: tuple[Rdma, ...] = ()
    default_route: Route | None = None
    port_range: tuple[int, int] | None = None
    reached: str | None = None

    @property
    def addresses(self) -> frozenset[str]:
        """All addresses of the host."""
        return frozenset(address.address for nic in self.nics for address in nic.addresses)

    @property
    def has_rdma(self) -> bool:
        """True if an RDMA device has a link."""
        return any(device.state == "active" for device in self.rdma)

    def nic(self, name: str) -> Nic | None:
        """Return the interface with this name; None if there is none."""
        return next((nic for nic in self.nics if nic.name == name), None)

    def nic_with(self, address: str | None) -> Nic | None:
        """Return the interface with that address; None if there is none, as behind NAT."""
        return next((nic for nic in self.nics for own in nic.addresses if own.address == address), None)


def parse_network(answers: Answers) -> Network:
    """Return the host's names, addresses and routes. They come from `ip`, or from the kernel's tables if the host lacks
    `ip`."""
    uname = answers.words("uname")
    names = _resolved(answers)
    canonical, own = names.pop(0, None) or (None, None)
    peers = answers.words("peers")
    addresses = parse_ip_addr(answers.all("ip.addr")) or parse_kernel_tables(
        answers.all("proc.fib_trie"), answers.all("proc.route")
    )
    return Network(
        hostname=uname[1] if len(uname) > 1 else None,
        canonical=canonical,
        resolves_to=own,
        peers={
            peers[number - 1]: peer_addresses
            for number, (_, peer_addresses) in sorted(names.items())
            if number <= len(peers)
        },
        nics=_nics(answers.all("nic"), addresses),
        rdma=tuple(_rdma(line) for line in answers.all("rdma")),
        default_route=_route(answers.all("route")),
        port_range=_port_range(answers.words("port_range")),
        reached=_canonical(answers.first("reached") or ""),
    )


def _resolved(answers: Answers) -> dict[int, tuple[str | None, tuple[str, ...]]]:
    """Return number → the canonical name and the addresses, from lines `NUMBER CANONICAL ADDRESS…`. Number 0 is the
    host's own name; the peers follow in order."""
    result: dict[int, tuple[str | None, tuple[str, ...]]] = {}
    for line in answers.all("resolved"):
        if named := _resolved_line(line):
            result.setdefault(*named)
    return result


@lru_cache(maxsize=4096)
def _resolved_line(line: str) -> tuple[int, tuple[str | None, tuple[str, ...]]] | None:
    """Parse one line of `_resolved`; None if it is damaged. Cached, because every host has a line for every other host,
    and most lines are equal."""
    number, *fields = line.split() or [""]
    if (index := natural(number)) is None or not fields:
        return None
    canonical, *addresses = fields
    valid = dict.fromkeys(address for word in addresses if (address := _canonical(word)))
    return index, (None if canonical == "-" else canonical, tuple(valid))


def _canonical(word: str) -> str | None:
    """Return the canonical form of an address; an IPv4-mapped IPv6 address becomes IPv4."""
    try:
        address = ip_address(word.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


_ADDRESS = re.compile(
    r"\d+:\s+(?P<nic>[^\s@]+)(?:@\S+)?\s+inet6?\s+(?P<address>[0-9a-fA-F.:]+)"
    r"(?:\s+peer\s+[0-9a-fA-F.:]+)?(?:/(?P<prefix>\d{1,3}))?\s.*?\bscope\s+(?P<scope>\w+)"
)
_PASSING = re.compile(r" (tentative|deprecated|temporary)\b")


def parse_ip_addr(lines: Iterable[str]) -> Mapping[str, Sequence[Address]]:
    """Return interface → its addresses by `ip -o addr`, without tentative, deprecated and temporary ones."""
    result: defaultdict[str, list[Address]] = defaultdict(list)
    for line in lines:
        match = _ADDRESS.match(line)
        if match is None or _PASSING.search(line):
            continue
        if address := _canonical(match["address"]):
            widest = 128 if ":" in address else 32
            prefix = min(int(match["prefix"] or widest), widest)
            item = Address(address, prefix, match["scope"])
            if item not in result[match["nic"]]:
                result[match["nic"]].append(item)
    return result


_LOCAL_ADDRESS = re.compile(r"\|-- (\S+)\s+/32 host LOCAL")


def parse_kernel_tables(fib_trie: Sequence[str], routes: Sequence[str]) -> Mapping[str, Sequence[Address]]:
    """Return interface → its IPv4 addresses, which /proc/net/fib_trie lists without interfaces: /proc/net/route tells
    the interface of their subnet ("" if none)."""
    subnets = []
    for line in routes[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[2] == "00000000":
            try:
                network = IPv4Network(f"{_little_endian(fields[1])}/{_little_endian(fields[7])}")
            except ValueError:
                continue
            if network.prefixlen:
                subnets.append((fields[0], network))
    subnets.sort(key=lambda item: -item[1].prefixlen)
    result: defaultdict[str, list[Address]] = defaultdict(list)
    for text in dict.fromkeys(_LOCAL_ADDRESS.findall("\n".join(fib_trie))):
        try:
            address = IPv4Address(text)
        except ValueError:
            continue
        if address.is_loopback:
            result["lo"].append(Address(text, 8, "host"))
        else:
            name, prefix = next(((name, net.prefixlen) for name, net in subnets if address in net), ("", 32))
            result[name].append(Address(text, prefix))
    return result


def _little_endian(text: str) -> str:
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(text.rjust(8, "0"))))


def _nics(rows: Iterable[str], addresses: Mapping[str, Sequence[Address]]) -> tuple[Nic, ...]:
    """Return the interfaces from lines `NAME KEY=VALUE…`, and those that only have an address."""
    attrs: dict[str, dict[str, str]] = {}
    for row in rows:
        name, _, rest = row.partition(" ")
        attrs.setdefault(name, dict(settings(rest)))
    for name in filter(None, addresses):
        attrs.setdefault(name, {})
    return tuple(
        Nic(
            name=name,
            kind=kind_of(name, answers),
            state=answers.get("operstate"),
            mtu=natural(answers.get("mtu")),
            speed=_speed(answers.get("speed")),
            physical="device" in answers if answers else None,
            mac=answers.get("address") if (answers.get("address") or "").strip("0:") else None,
            addresses=tuple(addresses.get(name, ())),
        )
        for name, answers in attrs.items()
    )


_BY_MARK: Final[tuple[tuple[str, NicKind], ...]] = (
    ("bonding", "bond"),
    ("bridge", "bridge"),
    ("wireless", "wifi"),
    ("tun_flags", "tunnel"),
)
_BY_DEVTYPE: Final[dict[str, NicKind]] = {
    "bond": "bond",
    "bridge": "bridge",
    "vlan": "vlan",
    "wlan": "wifi",
    "wireguard": "tunnel",
    "vxlan": "tunnel",
    "geneve": "tunnel",
}
_BY_TYPE: Final[dict[str, NicKind]] = {"772": "loopback", "32": "infiniband", "1": "ethernet"}
_OF_DOCKER = re.compile(r"docker\d+|docker_gwbridge|br-[0-9a-f]{12}|podman\d+|cni-podman\d+|lxdbr\d+|lxcbr\d+")
_OF_CONTAINERS = re.compile(r"(veth|cali|lxc|cilium|tunl|gre|sit|flannel|vxlan|tap|tun|wg|zt|tailscale).*")


def kind_of(name: str, attrs: Mapping[str, str]) -> NicKind:
    """Return the kind of an interface. Names of docker, libvirt and veth decide first, because to the kernel docker's
    interface is just a bridge; then the kernel's attributes, then other names."""
    if _OF_DOCKER.fullmatch(name):
        return "docker"
    if name.startswith("virbr"):
        return "libvirt"
    if re.match(r"(veth|cali|lxc)", name):
        return "veth"
    result = next((kind for mark, kind in _BY_MARK if mark in attrs), None) or _BY_DEVTYPE.get(attrs.get("devtype", ""))
    if result:
        return result
    if _OF_CONTAINERS.fullmatch(name):
        return "tunnel"
    if re.fullmatch(r"cni\d+", name):
        return "bridge"
    return _BY_TYPE.get(attrs.get("type", ""), "loopback" if re.fullmatch(r"lo\d*", name) else "unknown")


def _speed(text: str | None) -> int | None:
    """Return the speed; None if the driver doesn't know it and reports -1, signed or unsigned."""
    result = natural(text)
    return result if result and result < 1 << 31 else None


def _rdma(line: str) -> Rdma:
    name, state, link, rate, *nics = [*line.split("|"), "", "", ""]
    return Rdma(name, state.partition(": ")[2].lower() or None, link or None, rate or None, tuple(filter(None, nics)))


def _route(lines: Iterable[str]) -> Route | None:
    """Return the first default route from lines `INTERFACE GATEWAY`. The gateway is in the kernel's hex, which is
    little-endian for IPv4 and in network order for IPv6. IPv4 comes first."""
    for line in lines:
        iface, _, gateway = line.partition(" ")
        try:
            packed = bytes.fromhex(gateway)
        except ValueError:
            continue
        if len(packed) in (4, 16):
            address = ip_address(packed[::-1] if len(packed) == 4 else packed)
            return Route(iface, None if int(address) == 0 else str(address))
    return None


def _port_range(bounds: list[str]) -> tuple[int, int] | None:
    match [natural(word) for word in bounds]:
        case [int(low), int(high)] if low <= high < 65536:
            return low, high
    return None
