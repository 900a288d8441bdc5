"""The result of an install."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ipexctl.remote.outcome import HostResult, Report, exit_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.stack.lock.lock import Lock
    from ipexctl.stack.resolve.model import Refusal


@dataclass(frozen=True, slots=True)
class StackSummary:
    """The stack that was, is or would be installed."""

    name: str
    """The name of the row."""
    torch: str
    ipex: str | None
    oneccl: str | None
    mpi: str | None
    python: str
    backend: str
    why: str
    retired: bool


@dataclass(frozen=True, slots=True)
class InstallResult(HostResult):
    """The result of one host, with its environment and verification."""

    env: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    verify: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class InstallReport(Report[InstallResult]):
    stack: StackSummary | None = None
    refusal: Refusal | None = None
    """The reason why nothing was done."""
    lock: Lock | None = None
    notes: tuple[str, ...] = ()
    path: str | None = None
    """The environment's directory on every host; with --download-only the directory on the control machine."""
    dry_run: bool = False
    uplink: int = 0
    """Bytes of wheels sent from the control machine to hosts."""
    downloaded: int = 0
    """Bytes of wheels downloaded from indexes, on any machine."""

    @property
    def exit_code(self) -> int:
        if self.refusal is not None and self.refusal.wrong_call:
            return 2
        code = exit_code([host.status for host in self.hosts])
        return code or (1 if self.refusal is not None else 0)
