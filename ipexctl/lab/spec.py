"""The specification of a lab to be made. `state` holds a lab as made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ipexctl.errors import UserError
from ipexctl.lab.cpu_profiles import find_cpu_profile

MAX_HOSTS: Final = 200
"""Addresses .11 to .210 of one /24; more sshd processes than one machine is likely to run."""

DEFAULT_USER: Final = "ipex"

_LAB_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")
_USER_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_HOME_PARENT = re.compile(r"(/[A-Za-z0-9._-]+)+")


@dataclass(frozen=True, slots=True)
class LabSpec:
    """A lab to be made. A tuple with fewer entries than hosts is repeated."""

    hosts: int = 3
    name: str | None = None
    """`None`: the first free of lab, lab2, lab3 …"""
    cpus: tuple[str, ...] = ()
    """CPU profiles in the order of the hosts; empty: the real CPU of this machine."""
    shared_home: bool = False
    """The user's home is one filesystem on all nodes, as on NFS."""
    bastion: bool = False
    """A bastion host; the nodes have no address that this machine can reach."""
    internal: bool = False
    """A second network between the nodes; over the first one they reach only this machine."""
    names: bool = True
    """The nodes resolve each other's names."""
    users: tuple[str, ...] = (DEFAULT_USER,)
    """Login accounts of the hosts; may be `root`."""
    homes: tuple[str, ...] = ("/home",)
    """Parent directories of the accounts' homes."""


def check(spec: LabSpec) -> None:
    """Refuse a spec that can't be made."""
    if not 1 <= spec.hosts <= MAX_HOSTS:
        raise UserError(f"a lab has 1 to {MAX_HOSTS} hosts, not {spec.hosts}", fix="--hosts 3")
    if spec.name is not None:
        check_name(spec.name)
    for cpu in spec.cpus:
        find_cpu_profile(cpu)
    if not spec.users or not spec.homes:
        raise UserError("a lab needs at least one user and one home")
    if spec.shared_home and "root" in spec.users and len(set(spec.users)) > 1:
        raise UserError(
            "root and another account can't log in to one shared home: sshd wants it to be the account's own",
            fix="--users root, or leave root out",
        )
    for user in spec.users:
        if not _USER_NAME.fullmatch(user):
            raise UserError(f"{user!r} cannot be an account's name", fix="lower-case letters, digits, _ and -")
    for home in spec.homes:
        if not _HOME_PARENT.fullmatch(home) or ".." in home.split("/"):
            raise UserError(f"{home!r} cannot hold homes", fix="an absolute path such as /home or /scratch")
        if home.split("/")[1] in _SYSTEM_DIRECTORIES:
            raise UserError(f"{home!r} cannot hold homes: the system lives there", fix="/home, /scratch, /data …")


_SYSTEM_DIRECTORIES = frozenset(
    "bin boot dev etc lib lib32 lib64 proc root run sbin sys tmp usr".split()  # noqa: SIM905 - reads better
)


def check_name(name: str) -> None:
    """Refuse a name that can't be used in the names of namespaces and directories."""
    if not _LAB_NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be a lab's name",
            fix="up to 24 lower-case letters, digits and dashes, the first a letter",
        )
