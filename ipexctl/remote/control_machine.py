"""Finds hosts that are the control machine itself, and the address at which others reach it."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ipexctl.hosts.host import Host
from ipexctl.user_directories import account_name


def is_this_machine(host: Host) -> bool:
    """True if the host's address is one of the control machine's. False if the hostfile or command line names a port or
    another user: `localhost port=2222` is a tunnel or container, `root@localhost` another account."""
    if host.port is not None or host.ssh_config is not None:
        return False
    if host.user is not None and host.user != account_name():
        return False
    return _is_own_address(host.address)


@lru_cache(maxsize=1024)
def _is_own_address(address: str) -> bool:
    if is_loopback(address) or address == socket.gethostname():
        return True
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False  # a name: the ssh config may map it to any host
    return source_towards(str(parsed)) == str(parsed)


def source_towards(address: str) -> str | None:
    """Local address from which that address is reached; connecting a datagram socket sends no packet."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))
            return str(sock.getsockname()[0]).partition("%")[0]
    except OSError:
        return None


def with_own_address(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Replace `localhost` among other hosts by the control machine's address on their network."""
    if not any(is_loopback(host.address) and is_this_machine(host) for host in hosts):
        return tuple(hosts)
    others = [host for host in hosts if not is_this_machine(host)]
    shared_address = next((own for host in others if (own := _own_address_towards(host))), None)
    if shared_address is None:
        return tuple(hosts)
    return tuple(
        replace(host, internal=host.internal or shared_address)
        if is_this_machine(host) and is_loopback(host.address)
        else host
        for host in hosts
    )


def _own_address_towards(host: Host) -> str | None:
    try:
        infos = socket.getaddrinfo(host.internal or host.address, None, 0, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None  # a name, which is resolved when connecting, within a time limit
    return next((own for *_, address in infos if (own := source_towards(str(address[0])))), None)


def is_loopback(address: str) -> bool:
    if address in ("localhost", "localhost.localdomain", "ip6-localhost"):
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
