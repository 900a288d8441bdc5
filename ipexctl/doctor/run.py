"""`ipexctl doctor`: facts of every host, rules, the network check, a report.

It changes nothing on a host, and a failed host is a row of the report. A finding about several hosts counts for the
status of those it names; a fail without names counts for all.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from ipexctl.doctor.context import HostContext
from ipexctl.doctor.finding import DoctorReport, Finding, HostReport, merge_findings, worst
from ipexctl.doctor.host_system import is_installed
from ipexctl.doctor.ports import overflow_findings
from ipexctl.doctor.recommend import recommend
from ipexctl.doctor.rules import examine_cluster, examine_host
from ipexctl.doctor.run_states import named_runs, run_states
from ipexctl.facts.cpu import TIERS
from ipexctl.facts.internal import addresses_among
from ipexctl.refusal import Refusal
from ipexctl.remote.control_machine import is_this_machine
from ipexctl.stack.choice import choose_stack
from ipexctl.stack.resolve.model import StackRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ipexctl.doctor.finding import HostStatus
    from ipexctl.facts.gather import HostFacts
    from ipexctl.hosts.host import Host
    from ipexctl.remote.session_pool import SessionPool
    from ipexctl.stack.catalog.table import StackSpec


class DoctorRequest(NamedTuple):
    home: str
    rows: tuple[StackSpec, ...]
    node0_of: Callable[[str], Host | None]
    """node0 of a run by its id, if the run was started from the control machine."""
    iface: str | None = None
    require: str | None = None
    network: bool = True
    smoke: bool = False


def run_doctor(
    hosts: Sequence[Host], probed: Iterable[HostFacts], request: DoctorRequest, pool: SessionPool
) -> DoctorReport:
    started = time.monotonic()
    answers = {answer.host.name: answer for answer in probed}
    facts = {host.name: found for host in hosts if (found := answers[host.name].facts) is not None}
    chosen = addresses_among(hosts, facts, request.iface)
    internal = {} if isinstance(chosen, Refusal) else chosen  # the cluster's rules report the refusal
    with_answers = [(host, answers[host.name].facts) for host in hosts]
    node0s = {run: node0 for run in named_runs(with_answers) if (node0 := request.node0_of(run))}
    runs = run_states(with_answers, node0s)
    contexts: dict[str, HostContext] = {}
    for host in hosts:
        if host.name in facts:
            skew = answers[host.name].skew
            contexts[host.name] = HostContext(
                host,
                facts[host.name],
                internal=internal.get(host.name),
                peers=tuple(name for name in facts if name != host.name),
                node0=host == hosts[0],
                is_control=is_this_machine(host),
                skew=skew.seconds if skew else None,
                uncertainty=skew.uncertainty if skew else None,
                runs=runs,
            )
    cluster = list(examine_cluster(tuple(contexts.values()), iface=request.iface))
    reached = [host for host in hosts if answers[host.name].status == "ok"]
    advice = recommend(facts, internal, choose_stack(StackRequest(), facts, request.rows))
    network_seconds = None
    open_outside: frozenset[str] = frozenset()
    if request.network and len(reached) > 1 and internal:
        from ipexctl.doctor.network_check import check_network

        needs_logins = advice is not None and advice.backend == "ccl"
        network = check_network(pool, reached, internal, facts=facts, home=request.home, needs_logins=needs_logins)
        cluster += network.findings
        network_seconds, open_outside = network.seconds, network.open_outside
    cluster += overflow_findings(facts, internal, open_outside)
    if request.smoke and reached:
        from ipexctl.doctor.smoke import measure

        cluster += measure(pool, reached, internal, facts).findings
    about = findings_by_host(cluster, list(answers))
    return DoctorReport(
        hosts=tuple(
            host_report(answers[host.name], contexts.get(host.name), request.require, about[host.name])
            for host in hosts
        ),
        cluster=merge_findings(cluster),
        recommendation=advice,
        seconds=time.monotonic() - started,
        network_seconds=network_seconds,
    )


def findings_by_host(cluster: Iterable[Finding], names: Sequence[str]) -> dict[str, list[Finding]]:
    """Findings about several hosts or the network by each host they name; a fail without names goes to all."""
    by_host: dict[str, list[Finding]] = {name: [] for name in names}
    for finding in cluster:
        for name in finding.hosts or (names if finding.level == "fail" else ()):
            by_host.setdefault(name, []).append(finding)
    return by_host


def host_report(
    answer: HostFacts, context: HostContext | None, require: str | None, about: Sequence[Finding]
) -> HostReport:
    """`about`: findings about several hosts or the network that name this host; they count for its status."""
    host, facts = answer.host, answer.facts
    findings: tuple[Finding, ...] = ()
    if context is not None:
        findings = (*_required(context, require), *examine_host(context))
    level = worst((*findings, *about))
    status: HostStatus = level if level in ("warn", "fail") else "ok"
    if answer.status == "unreachable":
        status = "unreachable"
    elif facts is None or answer.status != "ok":
        status = "fail"
    installed = None if facts is None else is_installed(facts)
    return HostReport(host, status, answer.seconds, facts, findings, answer.reason, answer.fix, installed)


def _required(host: HostContext, tier: str | None) -> tuple[Finding, ...]:
    has = host.facts.cpu.tier
    if tier is None or (has is not None and TIERS.index(has) >= TIERS.index(tier)):
        return ()
    problem = "the instruction set of this CPU could not be read" if has is None else f"this CPU has only {has}"
    message = f"--require {tier}: {problem}"
    return (Finding("cpu.require", "fail", message, "leave it out: --limit '!NAME', or require less", (host.name,)),)
