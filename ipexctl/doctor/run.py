"""The verb behind `ipexctl doctor`: probe every host, judge it, judge all together, look at the network."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipexctl.doctor.context import HostContext
from ipexctl.doctor.finding import DoctorReport, Finding, HostReport, merge_findings, worst
from ipexctl.doctor.recommend import recommend
from ipexctl.doctor.rules import examine_cluster, examine_host
from ipexctl.doctor.run_states import named_runs, run_states
from ipexctl.facts.gather import gather
from ipexctl.facts.internal import addresses_among
from ipexctl.hosts.internal import NoCommonNetwork

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ipexctl.doctor.finding import HostStatus
    from ipexctl.doctor.run_states import RunState
    from ipexctl.facts.facts import Facts
    from ipexctl.facts.gather import HostFacts
    from ipexctl.hosts.host import Host
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.stack.catalog.table import StackSpec

TIERS = ("avx2", "avx512", "avx512_bf16", "amx")


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """What the caller asks of the examination."""

    home: str
    iface: str | None = None
    require: str | None = None
    network: bool = True
    smoke: bool = False
    timeout: float | None = None
    rows: tuple[StackSpec, ...] | None = None
    """The version table; None: as it is in the package."""
    node0_of: Callable[[str], Host | None] | None = None
    """By a run's id its node0, where the run was started from this machine."""


def run_doctor(hosts: Sequence[Host], wishes: DoctorRequest, pool: SessionPool) -> DoctorReport:
    """Everything there is to know, as one value. What fails on a host is in its report, never raised."""
    started = time.monotonic()
    answers = {answer.host.name: answer for answer in gather(hosts, pool, home=wishes.home, timeout=wishes.timeout)}
    facts = {host.name: found for host in hosts if (found := answers[host.name].facts) is not None}
    internal = _internal(hosts, facts, wishes.iface)
    runs = _run_states([(host, answers[host.name].facts) for host in hosts], wishes.node0_of)
    contexts = {host.name: _context(host, answers[host.name], internal, facts, hosts[0], runs) for host in hosts}
    reports = tuple(_judge(answers[host.name], contexts[host.name], wishes) for host in hosts)
    together = [(host, facts[host.name]) for host in hosts if host.name in facts]
    cluster = list(examine_cluster(together, contexts, iface=wishes.iface))
    probed = time.monotonic()
    well = [host for host in hosts if answers[host.name].status == "ok"]
    looked_at = None
    if wishes.network and len(well) > 1 and internal:
        from ipexctl.doctor.network_check import check_network

        cluster += check_network(pool, well, internal, facts=facts, home=wishes.home).findings
        looked_at = time.monotonic() - probed
    if wishes.smoke and well:
        from ipexctl.doctor.smoke import measure

        cluster += measure(pool, well, internal, facts).findings
    return DoctorReport(
        hosts=reports,
        cluster=merge_findings(cluster),
        recommendation=recommend(facts, internal, wishes.rows),
        seconds=time.monotonic() - started,
        network_seconds=looked_at,
    )


def _run_states(
    answers: Sequence[tuple[Host, Facts | None]], node0_of: Callable[[str], Host | None] | None
) -> dict[str, RunState]:
    known = {run: node0 for run in named_runs(answers) if node0_of and (node0 := node0_of(run))}
    return run_states(answers, known)


def _context(
    host: Host,
    answer: HostFacts,
    internal: Mapping[str, str],
    facts: Mapping[str, Facts],
    node0: Host,
    runs: Mapping[str, RunState],
) -> HostContext:
    skew = answer.skew
    return HostContext(
        name=host.name,
        address=host.address,
        internal=internal.get(host.name),
        peers=tuple(name for name in facts if name != host.name),
        node0=host == node0,
        skew=skew.seconds if skew else None,
        uncertainty=skew.uncertainty if skew else None,
        runs=runs,
    )


def _judge(answer: HostFacts, context: HostContext, wishes: DoctorRequest) -> HostReport:
    host, facts = answer.host, answer.facts
    if facts is None:
        status: HostStatus = "unreachable" if answer.status == "unreachable" else "fail"
        return HostReport(host, status, answer.seconds, None, (), answer.reason, answer.fix)
    findings = (*_required(host, facts, wishes.require), *examine_host(facts, context))
    level = worst(findings)
    status = level if level in ("warn", "fail") else "ok"
    if answer.status != "ok":
        status = "unreachable" if answer.status == "unreachable" else "fail"
    return HostReport(host, status, answer.seconds, facts, findings, answer.reason, answer.fix)


def _required(host: Host, facts: Facts, tier: str | None) -> tuple[Finding, ...]:
    """What --require asks for, said of every host that hasn't got it."""
    if tier is None:
        return ()
    has = facts.cpu.tier
    if has is None:
        message = f"--require {tier}: which instructions this CPU has could not be read"
    elif has in TIERS and TIERS.index(has) >= TIERS.index(tier):
        return ()
    else:
        message = f"--require {tier}: this CPU's best is {has}"
    return (Finding("cpu.require", "fail", message, "leave it out: --limit '!NAME', or ask for less", (host.name,)),)


def _internal(hosts: Sequence[Host], facts: Mapping[str, Facts], iface: str | None) -> dict[str, str]:
    """The addresses the hosts reach one another by; none where no network joins them, which is a finding."""
    chosen = addresses_among(hosts, facts, iface)
    return {} if isinstance(chosen, NoCommonNetwork) else chosen
