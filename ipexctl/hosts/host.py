"""A host of the hostfile. The properties of the machine are in `facts`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of the cluster. `None` means the file sets no value, so the ssh config decides."""

    name: str
    """The name as the user wrote it; used in every message and table."""
    address: str
    """The argument for ssh: the name itself, or `address=` of the file."""
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    """The number of ranks the file allows; for a repeated host, the sum."""
    max_slots: int | None = None
    internal: str | None = None
    """The address by which the other hosts reach it, if that differs."""
    identity: Path | None = None
    known_hosts: Path | None = None
    ssh_config: Path | None = None
    proxy: str | None = None
    """`ProxyJump=…` or `ProxyCommand=…` of an inventory, an option of ssh."""
    groups: tuple[str, ...] = ()
    vars: Mapping[str, str] = field(default_factory=dict, hash=False)
    """All other variables of an inventory, as text, for playbooks."""
    shared: frozenset[str] = frozenset()
    """The variables that come from its groups and not from the host itself."""


def private_keys(hosts: Iterable[Host]) -> tuple[Path, ...]:
    """The keys that a hostfile, an inventory or the call names; those of an ssh config are not known here."""
    return tuple(dict.fromkeys(host.identity for host in hosts if host.identity is not None))


def ssh_options(host: Host) -> list[str]:
    """The settings of the hostfile and the command line for this host, as options of ssh."""
    options: list[str] = []
    if host.ssh_config:
        options += ["-F", str(host.ssh_config)]
    if host.user:
        options += ["-l", host.user]
    if host.port:
        options += ["-p", str(host.port)]
    if host.identity:
        options += ["-i", str(host.identity), "-o", "IdentitiesOnly=yes"]
    if host.proxy:
        options += ["-o", host.proxy]
    if host.known_hosts:
        file = str(host.known_hosts)
        options += ["-o", f'UserKnownHostsFile="{file}"' if " " in file else f"UserKnownHostsFile={file}"]
    return options
