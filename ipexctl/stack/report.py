"""What became of a call of install, as a value."""

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
    """The stack that was installed, or is there, or would be."""

    name: str
    """The row's."""
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
    """One host: what was done there, and whether its environment works."""

    env: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict, hash=False)
    verify: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class InstallReport(Report[InstallResult]):
    stack: StackSummary | None = None
    refusal: Refusal | None = None
    """Why nothing was done."""
    lock: Lock | None = None
    notes: tuple[str, ...] = ()
    path: str | None = None
    """The environment's directory, the same on every host; of --download-only the directory here."""
    dry_run: bool = False
    uplink: int = 0
    """Bytes of wheels that went from this machine to the hosts."""
    downloaded: int = 0
    """Bytes of wheels fetched from indexes, by whichever machine."""

    @property
    def exit_code(self) -> int:
        if self.refusal is not None and self.refusal.wrong_call:
            return 2
        code = exit_code([host.status for host in self.hosts])
        return code or (1 if self.refusal is not None else 0)
