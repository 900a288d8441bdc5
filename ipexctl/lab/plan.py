"""Plans a lab from a LabSpec and the names and networks already in use: names, addresses, accounts. Pure."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.lab.state import Lab, LabHost

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ipexctl.lab.spec import LabSpec

BASTION: Final = "bastion"
_FRONT = "10.77"
_INNER = "10.78"
_FIRST_NODE = 11
_BASTION_NUMBER = 10
_MIN_PREFIX = 16
"""Routes with a shorter prefix (a VPN's 10.0.0.0/8) do not occupy a block: the lab's /24 is more specific and wins."""


def front_gateway(block: int) -> str:
    return f"{_FRONT}.{block}.1"


def front6_gateway(block: int) -> str:
    return f"fd77:{block}::1"


def ipv6(address: str) -> str:
    """The IPv6 address for a lab's IPv4 address: 10.77.3.11 → fd77:3::11."""
    _, net, block, number = address.split(".")
    return f"fd{net}:{block}::{number}"


def free_name(taken: Collection[str], requested: str | None = None) -> str:
    """The requested name, or the first free of lab, lab2, lab3 …"""
    if requested is not None:
        if requested in taken:
            raise UserError(
                f"there is a lab {requested!r} already", fix=f"ipexctl lab down --lab {requested}, or another name"
            )
        return requested
    number = 1
    while (name := "lab" if number == 1 else f"lab{number}") in taken:
        number += 1
    return name


def free_block(taken: Collection[int], routes: Iterable[str]) -> int:
    """The first K whose two /24 networks no lab uses and no route of this machine overlaps."""
    networks = [_network(route) for route in routes]
    occupied = [network for network in networks if network is not None and network.prefixlen >= _MIN_PREFIX]
    for block in range(1, 255):
        if block in taken:
            continue
        candidates = [ipaddress.IPv4Network(f"{prefix}.{block}.0/24") for prefix in (_FRONT, _INNER)]
        if not any(candidate.overlaps(other) for candidate in candidates for other in occupied):
            return block
    raise UserError(
        "no free network is left for another lab", fix="ipexctl lab list, and down --lab those you do not need"
    )


def _network(route: str) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Network(route, strict=False)
    except ValueError:  # "default", an IPv6 route, a keyword of a newer iproute2
        return None


def make_plan(spec: LabSpec, name: str, block: int) -> Lab:
    """The lab of this spec, with all names and addresses."""
    hosts = tuple(_node(spec, name, block, index) for index in range(spec.hosts))
    bastion = None
    if spec.bastion:
        bastion = LabHost(
            lab=name,
            name=BASTION,
            address=f"{_FRONT}.{block}.{_BASTION_NUMBER}",
            internal=f"{_INNER}.{block}.{_BASTION_NUMBER}",
            user=spec.users[0],
            home=_home(spec.users[0], spec.homes[0]),
            is_bastion=True,
        )
    return Lab(
        name=name,
        block=block,
        hosts=hosts,
        bastion=bastion,
        shared_home=spec.shared_home,
        names=spec.names,
    )


def _node(spec: LabSpec, name: str, block: int, index: int) -> LabHost:
    user = spec.users[index % len(spec.users)]
    number = _FIRST_NODE + index
    return LabHost(
        lab=name,
        name=f"node{index + 1}",
        address=f"{_INNER if spec.bastion else _FRONT}.{block}.{number}",
        internal=f"{_INNER}.{block}.{number}" if spec.internal and not spec.bastion else None,
        user=user,
        home=_home(user, spec.homes[index % len(spec.homes)]),
        cpu_profile=spec.cpus[index % len(spec.cpus)] if spec.cpus else None,
        behind_bastion=spec.bastion,
    )


def _home(user: str, parent: str) -> str:
    return "/root" if user == "root" else f"{parent.rstrip('/')}/{user}"
