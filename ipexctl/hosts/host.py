"""A host of the hostfile. Its hardware is in `facts`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of the cluster. None means the file sets no value, so the ssh config decides."""

    name: str
    """As the user wrote it; used in every message and table."""
    address: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    """Ranks that the file allows, summed over repeated lines."""
    max_slots: int | None = None
    internal: str | None = None
    """Address for the other hosts, if it differs."""
    identity: Path | None = None
    known_hosts: Path | None = None
    ssh_config: Path | None = None
    proxy: str | None = None
    """ssh option `ProxyJump=…` or `ProxyCommand=…` from an inventory."""
    groups: tuple[str, ...] = ()
    vars: Mapping[str, str] = field(default_factory=dict, hash=False)
    shared: frozenset[str] = frozenset()


def private_keys(hosts: Iterable[Host]) -> tuple[Path, ...]:
    """Keys named by a hostfile, an inventory or the command line, not by an ssh config."""
    return tuple(dict.fromkeys(host.identity for host in hosts if host.identity is not None))


def ssh_options(host: Host) -> list[str]:
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
