"""Parses a host's addresses from `ip`, `ifconfig` or the kernel's tables."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from ipexctl.hosts.internal import Nic

if TYPE_CHECKING:
    from collections.abc import Iterator

_IP = re.compile(r"^\d+:\s+(\S+?)(?:@\S+)?\s+inet6?\s+(\S+?)(?:/(\d+))?\s(.*)$")
_IFCONFIG_NAME = re.compile(r"^(\S+?):?\s")
_IFCONFIG_V4 = re.compile(r"\binet (?:addr:)?(\d+\.\d+\.\d+\.\d+).*?(?:netmask |Mask:)(\S+)")
_IFCONFIG_V6 = re.compile(r"\binet6 (?:addr: ?)?([0-9a-fA-F:]+)(?:%\S+)?(?:/(\d+)|.*?prefixlen (\d+))")


def read_nics(ip: str = "", ifconfig: str = "", fib_trie: str = "", routes: str = "") -> tuple[Nic, ...]:
    """The addresses of the first source that has any. A line that can't be parsed is skipped."""
    for source in (_from_ip(ip), _from_ifconfig(ifconfig), _from_kernel(fib_trie, routes)):
        nics = tuple(dict.fromkeys(nic for nic in source if _is_address(nic)))
        if nics:
            return nics
    return ()


def _is_address(nic: Nic) -> bool:
    """Whether it is a valid address: it is written into configuration files."""
    try:
        ipaddress.ip_interface(f"{nic.address}/{nic.prefix}")
    except ValueError:
        return False
    return "%" not in nic.address


def _from_ip(text: str) -> Iterator[Nic]:
    """`ip -o addr show`; a point-to-point address is followed by its peer and the peer's prefix."""
    for line in text.splitlines():
        match = _IP.match(line)
        if match is None or " tentative" in match[4] or " deprecated" in match[4] or " temporary" in match[4]:
            continue
        peer = re.match(r"peer \S+/(\d+) ", match[4])
        version = 128 if ":" in match[2] else 32
        yield Nic(match[1], match[2], version if peer else int(match[3] or version))


def _from_ifconfig(text: str) -> Iterator[Nic]:
    interface = ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            match = _IFCONFIG_NAME.match(line)
            interface = match[1] if match else ""
        if v4 := _IFCONFIG_V4.search(line):
            prefix = _prefix_of(v4[2])
            if prefix is not None:
                yield Nic(interface, v4[1], prefix)
        elif v6 := _IFCONFIG_V6.search(line):
            yield Nic(interface, v6[1], int(v6[2] or v6[3]))


def _from_kernel(fib_trie: str, routes: str) -> Iterator[Nic]:
    """Addresses of /proc/net/fib_trie, and interfaces and prefixes of /proc/net/route. IPv4 only."""
    subnets = []
    for line in routes.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[2] == "00000000":
            try:
                network = ipaddress.IPv4Network(f"{_little_endian(fields[1])}/{_little_endian(fields[7])}")
            except ValueError:
                continue
            if network.prefixlen:
                subnets.append((fields[0], network))
    subnets.sort(key=lambda item: -item[1].prefixlen)
    for address in re.findall(r"\|-- (\S+)\s+/32 host LOCAL", fib_trie):
        try:
            parsed = ipaddress.IPv4Address(address)
        except ValueError:
            continue
        if parsed.is_loopback:
            yield Nic("lo", address, 8)
            continue
        interface, prefix = next(((name, net.prefixlen) for name, net in subnets if parsed in net), ("", 32))
        yield Nic(interface, address, prefix)


def _little_endian(text: str) -> str:
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(text.rjust(8, "0"))))


def _prefix_of(mask: str) -> int | None:
    try:
        if mask.startswith("0x"):
            return bin(int(mask, 16)).count("1")
        return ipaddress.IPv4Network(f"0.0.0.0/{mask}").prefixlen
    except ValueError:
        return None
