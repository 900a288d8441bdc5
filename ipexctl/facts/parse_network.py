"""The probe's lines about interfaces, addresses and names, as a Network. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final

from ipexctl.facts.answers import natural, settings
from ipexctl.facts.network import Address, Network, Nic, Rdma, Route

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ipexctl.facts.answers import Answers
    from ipexctl.facts.network import NicKind


def parse_network(said: Answers) -> Network:
    words = said.words("uname")
    names = _resolved(said)
    own = names.pop(0, None)
    peers = said.words("peers")
    rows = said.all("nic")
    old_way = _ifconfig(said.all("ifconfig"))
    addresses = _addresses(said.all("ip.addr")) or {nic.name: list(nic.addresses) for nic in old_way}
    nics = _nics(rows, addresses) if rows or not old_way else old_way
    return Network(
        hostname=words[1] if len(words) > 1 else None,
        canonical=own[0] if own else None,
        resolves_to=own[1] if own else None,
        peers={peers[at - 1]: found for at, (_, found) in sorted(names.items()) if at <= len(peers)},
        nics=nics,
        rdma=tuple(_rdma(line) for line in said.all("rdma")),
        default_route=_route(said.all("route")),
        port_range=_port_range(said.words("port_range")),
    )


def _resolved(said: Answers) -> dict[int, tuple[str | None, tuple[str, ...]]]:
    """`NUMBER CANONICAL ADDRESS…` by the name's number: ours is 0, the peers' follow in their order."""
    found: dict[int, tuple[str | None, tuple[str, ...]]] = {}
    for line in said.all("resolved"):
        words = line.split()
        at = natural(words[0])
        if at is not None and len(words) > 1:
            valid = dict.fromkeys(address for word in words[2:] if (address := _clean(word)))
            found.setdefault(at, (None if words[1] == "-" else words[1], tuple(valid)))
    return found


def _clean(word: str) -> str | None:
    """An address as the kernel would write it; a v4 one in v6 clothes as itself."""
    try:
        address = ip_address(word.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


_ADDRESS = re.compile(
    r"\d+:\s+(?P<nic>[^\s@]+)(?:@\S+)?\s+inet6?\s+(?P<address>[0-9a-fA-F.:]+)"
    r"(?:\s+peer\s+[0-9a-fA-F.:]+)?(?:/(?P<prefix>\d{1,3}))?.*?\bscope\s+(?P<scope>\w+)"
)


def _addresses(lines: Iterable[str]) -> dict[str, list[Address]]:
    found: defaultdict[str, list[Address]] = defaultdict(list)
    for line in lines:
        match = _ADDRESS.match(line)
        if match and (address := _clean(match["address"])):
            widest = 128 if ":" in address else 32
            prefix = min(int(match["prefix"] or widest), widest)
            item = Address(address, prefix, match["scope"])
            if item not in found[match["nic"]]:
                found[match["nic"]].append(item)
    return found


def _nics(rows: Iterable[str], addresses: Mapping[str, list[Address]]) -> tuple[Nic, ...]:
    marks: dict[str, dict[str, str]] = {}
    for row in rows:
        name, _, rest = row.partition(" ")
        marks.setdefault(name, dict(settings(rest)))
    for name in addresses:
        marks.setdefault(name, {})
    return tuple(
        Nic(
            name=name,
            kind=kind_of(name, said),
            state=said.get("operstate"),
            mtu=natural(said.get("mtu")),
            speed=_speed(said.get("speed")),
            physical="device" in said if said else None,
            mac=said.get("address") if (said.get("address") or "").strip("0:") else None,
            addresses=tuple(addresses.get(name, ())),
        )
        for name, said in marks.items()
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


def kind_of(name: str, marks: Mapping[str, str]) -> NicKind:
    """What an interface is. Names count where the kernel makes no difference: a docker bridge is a bridge."""
    if _OF_DOCKER.fullmatch(name):
        return "docker"
    if name.startswith("virbr"):
        return "libvirt"
    if re.match(r"(veth|cali|lxc)", name):
        return "veth"
    found = next((kind for mark, kind in _BY_MARK if mark in marks), None) or _BY_DEVTYPE.get(marks.get("devtype", ""))
    if found:
        return found
    if _OF_CONTAINERS.fullmatch(name):
        return "tunnel"
    if re.fullmatch(r"cni\d+", name):
        return "bridge"
    return _BY_TYPE.get(marks.get("type", ""), "loopback" if re.fullmatch(r"lo\d*", name) else "unknown")


def _speed(text: str | None) -> int | None:
    """A driver that doesn't know says -1, or the same without its sign."""
    found = natural(text)
    return found if found and found < 1 << 31 else None


def _rdma(line: str) -> Rdma:
    name, state, link, rate, *nics = [*line.split("|"), "", "", ""][: max(4, line.count("|") + 1)]
    return Rdma(
        name=name,
        state=state.partition(": ")[2].lower() or None,
        link=link or None,
        rate=rate or None,
        nics=tuple(nic for nic in nics if nic),
    )


def _route(lines: Iterable[str]) -> Route | None:
    """The kernel's hex: v4 in the byte order of a little-endian machine, v6 in the network's. v4 comes first."""
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


def _port_range(words: list[str]) -> tuple[int, int] | None:
    match [natural(word) for word in words]:
        case [int(low), int(high)] if low <= high < 65536:
            return low, high
    return None


def _ifconfig(lines: Iterable[str]) -> tuple[Nic, ...]:
    """The BSDs' and old Linux's ifconfig: a line at the margin begins an interface."""
    heads: dict[str, tuple[int | None, str | None]] = {}
    addresses: defaultdict[str, list[Address]] = defaultdict(list)
    name = ""
    for line in lines:
        if line[:1].strip():
            name = line.split()[0].rstrip(":")
            up = "up" if re.search(r"<UP\b", line) else "down" if "<" in line else None
            heads[name] = (None, up)
        if name and (mtu := re.search(r"\bmtu[: ](\d{1,6})", line, re.IGNORECASE)):
            heads[name] = (int(mtu[1]), heads[name][1])
        if name and (address := _bsd_address(line)):
            addresses[name].append(address)
    return tuple(
        Nic(name, kind_of(name, {"type": "1"} if name.startswith(("en", "eth", "ix", "em", "igb")) else {}), state, mtu,
            addresses=tuple(addresses[name]))
        for name, (mtu, state) in heads.items()
    )  # fmt: skip


def _bsd_address(line: str) -> Address | None:
    match = re.search(r"\binet6?\s+(?:addr:\s*)?([0-9a-fA-F.:]+)", line)
    address = _clean(match[1]) if match else None
    if address is None:
        return None
    prefix = re.search(r"prefixlen (\d{1,3})|/(\d{1,3})\b", line)
    mask = re.search(r"netmask (0x[0-9a-fA-F]{8}|[0-9.]+)|Mask:([0-9.]+)", line)
    if ":" in address:
        wide = int(prefix[1] or prefix[2]) if prefix else 128
        return Address(address, min(wide, 128), "link" if address.startswith("fe80") else "global")
    return Address(
        address, _mask_width(mask[1] or mask[2]) if mask else 32, "host" if address[:4] == "127." else "global"
    )


def _mask_width(mask: str) -> int:
    if mask.startswith("0x"):
        return int(mask, 16).bit_count()
    try:
        return ip_network(f"0.0.0.0/{mask}").prefixlen
    except ValueError:
        return 32
