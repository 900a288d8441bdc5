"""The result of trust."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ipexctl.remote.outcome import HostResult, Report

if TYPE_CHECKING:
    from ipexctl.hosts.host import Host

By = Literal["config", "own", "nothing"]
"""The way node0 reaches the nodes: with the config of ipexctl, with the account's own ssh, or not at all."""


@dataclass(frozen=True, slots=True)
class TrustResult(HostResult):
    """One host: the changes there, and whether node0 can log in."""

    internal: str | None = None
    ssh_name: str | None = None
    """The name that node0 passes to ssh."""


@dataclass(frozen=True, slots=True)
class TrustReport(Report[TrustResult]):
    by: By = "nothing"
    config: str | None = None
    """The ssh config on node0, absolute."""
    revoke: bool = False
    dry_run: bool = False
    notes: tuple[str, ...] = ()

    @property
    def node0(self) -> Host:
        return self.hosts[0].host
