"""Check a lab's specification and choose its names, addresses and accounts. Pure.

A lab has a front and an inner network, each a /23 in 10.77 and 10.78, which limits it to 400 hosts.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from ipexctl.addons.lab.cpu_profiles import find_cpu_profile
from ipexctl.addons.lab.lab_record import Lab, LabHost
from ipexctl.errors import UserError
from ipexctl.node.common.fix import Fix
from ipexctl.option_declaration import LAB_HOMES, LAB_HOSTS, LAB_USER

_PER_BLOCK: Final = 200
"""Hosts have the addresses .11 to .210 of each /24."""
MAX_HOSTS: Final = 2 * _PER_BLOCK
"""Two /24; one machine is unlikely to run more sshd processes."""

_LAB_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")
_USER_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_HOME_PARENT = re.compile(r"(/[A-Za-z0-9._-]+)+")


@dataclass(frozen=True, slots=True)
class LabSpec:
    """What to create. A tuple with fewer entries than hosts is repeated."""

    hosts: int = LAB_HOSTS
    name: str | None = None
    """`None`: the first free of lab, lab2, lab3 …"""
    cpus: tuple[str, ...] = ()
    shared_home: bool = False
    """As on NFS: all nodes share one filesystem."""
    bastion: bool = False
    internal: bool = False
    names: bool = True
    users: tuple[str, ...] = (LAB_USER,)
    homes: tuple[str, ...] = (LAB_HOMES,)
    slurm: bool = False
    temporary: bool = False
    """Once the process that made the lab has exited, anybody's `down` may remove it."""


def check(spec: LabSpec) -> None:
    """Refuse a specification that no lab can fulfil."""
    if not 1 <= spec.hosts <= MAX_HOSTS:
        raise UserError(f"a lab has 1 to {MAX_HOSTS} hosts, not {spec.hosts}", fix="--hosts 3")
    if spec.name is not None:
        check_name(spec.name)
    if spec.slurm:
        _check_slurm(spec)
    for cpu in spec.cpus:
        find_cpu_profile(cpu)
    if not spec.users or not spec.homes:
        raise UserError("a lab needs at least one user and one home")
    if spec.shared_home and "root" in spec.users and len(set(spec.users)) > 1:
        raise UserError(
            "root and another account can't log in to one shared home: sshd requires that the account owns it",
            fix="--users root, or remove root",
        )
    for user in spec.users:
        if not _USER_NAME.fullmatch(user):
            raise UserError(f"{user!r} can't be an account's name", fix="use lower-case letters, digits, _ and -")
    for home in spec.homes:
        if not _HOME_PARENT.fullmatch(home) or ".." in home.split("/"):
            raise UserError(f"{home!r} cannot hold homes", fix="use an absolute path such as /home or /scratch")
        if home.split("/")[1] in _SYSTEM_DIRECTORIES:
            raise UserError(f"{home!r} cannot hold homes: it is a system directory", fix="use /home, /scratch, /data …")


def _check_slurm(spec: LabSpec) -> None:
    """Refuse what a lab with Slurm can't be."""
    if spec.hosts < 2:
        raise UserError(
            "a lab with Slurm has two hosts or more: the first is the login host, the others compute", fix="--hosts 3"
        )
    if spec.bastion or not spec.names:
        option = "--bastion" if spec.bastion else "--no-names"
        raise UserError(f"--slurm and {option}: Slurm's daemons find each other by name", fix=f"without {option}")
    if len(set(spec.users)) > 1 or len(set(spec.homes)) > 1:
        raise UserError(
            "all hosts of a Slurm cluster need the same account and home", fix="one name each for --users, --homes"
        )


_SYSTEM_DIRECTORIES = frozenset(
    "bin boot dev etc lib lib32 lib64 proc root run sbin sys tmp usr".split()  # noqa: SIM905 - reads better
)


def check_name(name: str) -> None:
    """Refuse a text that can't be a lab's name."""
    if not _LAB_NAME.fullmatch(name):
        raise UserError(
            f"{name!r} can't be a lab's name",
            fix="use up to 24 lower-case letters, digits and dashes, the first a letter",
        )


BASTION: Final = "bastion"
PREFIX: Final = 23
PREFIX_V6: Final = 31
"""Prefix of the IPv6 networks. Their second group is the third number of the IPv4 address."""
_FRONT = "10.77"
_INNER = "10.78"
_FIRST_NODE = 11
_BASTION_NUMBER = 10
_MIN_PREFIX = 16
"""Routes with a shorter prefix, such as a VPN's 10.0.0.0/8, block nothing: the lab's /23 is more specific."""


def front_gateway(block: int) -> str:
    """Return this machine's address in the lab's front network."""
    return f"{_FRONT}.{block}.1"


def ipv6(address: str) -> str:
    """Return the IPv6 address beside an IPv4 one: `fd77:2::11` for `10.77.2.11`."""
    _, net, block, number = address.split(".")
    return f"fd{net}:{block}::{number}"


def free_name(taken: Collection[str], requested: str | None = None) -> str:
    """Return the requested name, or else the first free one of lab, lab2, lab3 …. Raises a UserError if the requested
    name is taken."""
    if requested is not None:
        if requested in taken:
            raise UserError(
                f"the lab {requested!r} already exists",
                fix=Fix(f"`ipexctl lab down {requested}`, or another name"),
            )
        return requested
    number = 1
    while (name := "lab" if number == 1 else f"lab{number}") in taken:
        number += 1
    return name


def free_block(taken: Collection[int], routes: Iterable[str]) -> int:
    """Return the first even K whose two /23 networks are not used by a lab and overlap no route."""
    networks = [_network(route) for route in routes]
    occupied = [network for network in networks if network is not None and network.prefixlen >= _MIN_PREFIX]
    for block in range(2, 255, 2):
        if block in taken:
            continue
        candidates = [ipaddress.IPv4Network(f"{prefix}.{block}.0/{PREFIX}") for prefix in (_FRONT, _INNER)]
        if not any(candidate.overlaps(other) for candidate in candidates for other in occupied):
            return block
    raise UserError(
        "there is no free network for another lab",
        fix=Fix("`ipexctl lab list`, and `ipexctl lab down NAME` for a lab that you do not need"),
    )


def _network(route: str) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Network(route, strict=False)
    except ValueError:  # "default", an IPv6 route, or a keyword of a newer iproute2
        return None


def plan_lab(spec: LabSpec, name: str, block: int) -> Lab:
    """Return the lab with all its hosts. Nothing is made or recorded yet."""
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
        slurm=spec.slurm,
        temporary=spec.temporary,
    )


def _node(spec: LabSpec, name: str, block: int, index: int) -> LabHost:
    """Return one host of the lab: its name, addresses, account and CPU."""
    user = spec.users[index % len(spec.users)]
    block, number = block + index // _PER_BLOCK, _FIRST_NODE + index % _PER_BLOCK
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
