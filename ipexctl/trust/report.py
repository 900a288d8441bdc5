"""The result of trust."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ipexctl.remote.outcome import exit_code

if TYPE_CHECKING:
    from ipexctl.hosts.host import Host
    from ipexctl.remote.outcome import Status

By = Literal["config", "own", "nothing"]
"""The way node0 reaches the nodes: with the config of ipexctl, with the account's own ssh, or not at all."""


@dataclass(frozen=True, slots=True)
class HostTrust:
    """One host: the changes there, and whether node0 can log in."""

    host: Host
    status: Status
    reason: str = ""
    fix: str = ""
    internal: str | None = None
    ssh_name: str | None = None
    """The name that node0 passes to ssh."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TrustReport:
    hosts: tuple[HostTrust, ...]
    seconds: float
    by: By = "nothing"
    config: str | None = None
    """The ssh config on node0, absolute."""
    revoke: bool = False
    dry_run: bool = False
    notes: tuple[str, ...] = ()

    @property
    def node0(self) -> Host:
        return self.hosts[0].host

    @property
    def exit_code(self) -> int:
        return exit_code([host.status for host in self.hosts])
