"""What the doctor found out, as one value: of every host, of all together, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ipexctl.doctor.finding import Finding
    from ipexctl.doctor.recommend import Recommendation
    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host

HostStatus = Literal["ok", "warn", "fail", "unreachable"]


@dataclass(frozen=True, slots=True)
class HostReport:
    host: Host
    status: HostStatus
    seconds: float
    facts: Facts | None = None
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    hosts: tuple[HostReport, ...]
    cluster: tuple[Finding, ...]
    """Findings about several hosts, and about the network among them."""
    recommendation: Recommendation | None
    seconds: float
    network_seconds: float | None = None
    """None where the network wasn't looked at."""

    @property
    def exit_code(self) -> int:
        if any(host.status == "unreachable" for host in self.hosts):
            return 3
        failed = any(host.status == "fail" for host in self.hosts)
        return 1 if failed or any(finding.level == "fail" for finding in self.cluster) else 0
