"""A finding of doctor, and the report: findings of every host and of the cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from ipexctl.doctor.recommend import Recommendation
from ipexctl.facts.facts import Facts
from ipexctl.hosts.host import Host

Level = Literal["ok", "info", "warn", "fail"]
HostStatus = Literal["ok", "warn", "fail", "unreachable"]
_EXCLUDED: Final = re.compile("'!NAME(,!NAME)?'")
LEVELS: Final[tuple[Level, ...]] = ("ok", "info", "warn", "fail")


class Finding(NamedTuple):
    """`id` is dotted and never changes its meaning; `docs/findings.md` explains each."""

    id: str
    level: Level
    message: str
    """What was found and what it means for training, without the host's name."""
    fix: str = ""
    hosts: tuple[str, ...] = ()

    @property
    def pasteable_fix(self) -> str:
        """The fix with host names in `--limit`, where the rules write NAME."""
        return _EXCLUDED.sub("'" + ",".join(f"!{name}" for name in self.hosts) + "'", self.fix)


def worst(findings: Iterable[Finding]) -> Level:
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")


def merge_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    merged: dict[Finding, dict[str, None]] = {}
    for finding in findings:
        merged.setdefault(finding._replace(hosts=()), {}).update(dict.fromkeys(finding.hosts))
    return tuple(finding._replace(hosts=tuple(hosts)) for finding, hosts in merged.items())


class HostReport(NamedTuple):
    host: Host
    status: HostStatus
    seconds: float
    facts: Facts | None = None
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    fix: str = ""
    is_installed: bool | None = None
    """True if it has an environment that `run` could use; None if unknown."""


class DoctorReport(NamedTuple):
    hosts: tuple[HostReport, ...]
    cluster: tuple[Finding, ...]
    recommendation: Recommendation | None
    seconds: float
    network_seconds: float | None = None

    @property
    def exit_code(self) -> int:
        if any(host.status == "unreachable" for host in self.hosts):
            return 3
        failed = any(host.status == "fail" for host in self.hosts)
        return 1 if failed or any(finding.level == "fail" for finding in self.cluster) else 0
