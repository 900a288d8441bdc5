"""From a LabSpec and what this machine already uses to a Lab: names, addresses, accounts. Pure."""

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
_BROAD = 16
"""A route shorter than this (a VPN's 10.0.0.0/8) is no reason to give a block up: ours is narrower and wins."""


def front_gateway(block: int) -> str:
    return f"{_FRONT}.{block}.1"


def front6_gateway(block: int) -> str:
    return f"fd77:{block}::1"


def ipv6(address: str) -> str:
    """The IPv6 twin of one of our addresses: 10.77.3.11 → fd77:3::11."""
    _, net, block, number = address.split(".")
    return f"fd{net}:{block}::{number}"


def free_name(taken: Collection[str], wanted: str | None = None) -> str:
    """The wanted name, or the first free of lab, lab2, lab3 …"""
    if wanted is not None:
        if wanted in taken:
            raise UserError(
                f"there is a lab {wanted!r} already", fix=f"ipexctl lab down --lab {wanted}, or another name"
            )
        return wanted
    number = 1
    while (name := "lab" if number == 1 else f"lab{number}") in taken:
        number += 1
    return name


def free_block(taken: Collection[int], routes: Iterable[str]) -> int:
    """The first K whose two /24 no lab has and no route of this machine touches."""
    networks = [_network(route) for route in routes]
    narrow = [net for net in networks if net is not None and net.prefixlen >= _BROAD]
    for block in range(1, 255):
        if block in taken:
            continue
        ours = [ipaddress.IPv4Network(f"{half}.{block}.0/24") for half in (_FRONT, _INNER)]
        if not any(mine.overlaps(theirs) for mine in ours for theirs in narrow):
            return block
    raise UserError(
        "no free network is left for another lab", fix="ipexctl lab list, and down --lab those you do not need"
    )


def _network(route: str) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Network(route, strict=False)
    except ValueError:  # "default", an IPv6 route, a word of a newer iproute2
        return None


def make_plan(spec: LabSpec, name: str, block: int) -> Lab:
    """The lab this spec asks for, with every name and address decided."""
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
