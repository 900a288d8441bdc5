"""Whether a host of the file is the machine we run on, and which address of ours the others know."""

from __future__ import annotations

import getpass
import ipaddress
import socket
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.hosts.host import Host

_SELF = ("localhost", "localhost.localdomain", "ip6-localhost")


def is_this_machine(host: Host) -> bool:
    """A host is reached without ssh if its address is one of ours.

    Not where the file or the call names a port or another user: `localhost port=2222` is a tunnel or a
    container, `root@localhost` is a change of account, and both go through ssh.
    """
    if host.port is not None or host.ssh_config is not None:
        return False
    if host.user is not None and host.user != getpass.getuser():
        return False
    return _is_ours(host.address)


@lru_cache(maxsize=1024)
def _is_ours(address: str) -> bool:
    if address in _SELF or address == socket.gethostname():
        return True
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False  # another name: ssh's configuration may send it anywhere, so it is never taken for us
    return parsed.is_loopback or _source_towards(str(parsed)) == str(parsed)


def _source_towards(address: str) -> str | None:
    """The address of ours that would talk to that one: a datagram socket is told to, and sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))
            return str(sock.getsockname()[0]).partition("%")[0]
    except OSError:
        return None


def with_own_address(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """`localhost` beside other machines stands for our address on the network shared with them."""
    if not any(_is_loopback(host) and is_this_machine(host) for host in hosts):
        return tuple(hosts)
    others = [host for host in hosts if not is_this_machine(host)]
    seen_by_others = next((own for host in others if (own := _own_address_towards(host))), None)
    if seen_by_others is None:
        return tuple(hosts)
    return tuple(
        replace(host, internal=host.internal or seen_by_others)
        if is_this_machine(host) and _is_loopback(host)
        else host
        for host in hosts
    )


def _own_address_towards(host: Host) -> str | None:
    try:
        found = socket.getaddrinfo(host.internal or host.address, None, 0, socket.SOCK_DGRAM, 0, socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None  # a name: whether it resolves is found out where it is dialled, within a time limit
    return next((own for *_, address in found if (own := _source_towards(str(address[0])))), None)


def _is_loopback(host: Host) -> bool:
    if host.address in _SELF:
        return True
    try:
        return ipaddress.ip_address(host.address).is_loopback
    except ValueError:
        return False
