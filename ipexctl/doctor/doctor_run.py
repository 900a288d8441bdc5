"""Do the work of `ipexctl doctor`: judge the facts of every host by the rules, check the network, and make a report.

Doctor changes nothing on a host, and a failed host is a row of the report. A finding about several hosts counts for the
status of each host it names; a fail that names none counts for all hosts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from ipexctl.doctor import (
    cluster_machines,
    cpu_memory_rules,
    host_environment,
    host_system,
    network_rules,
    software_rules,
)
from ipexctl.doctor.finding import (
    LEVELS,
    ClusterContext,
    ClusterReport,
    DoctorReport,
    Finding,
    HostContext,
    HostReport,
    HostStatus,
    merge_findings,
    named_runs,
    recommend,
    run_states,
    worst,
)
from ipexctl.doctor.host_system import is_installed
from ipexctl.doctor.port_pairs import overflow_findings
from ipexctl.doctor.product_speeds import remember
from ipexctl.doctor.smoke import measure
from ipexctl.errors import Refusal
from ipexctl.facts.cpu import TIERS
from ipexctl.facts.facts import addresses_among, addresses_of
from ipexctl.facts.gather import HostFacts
from ipexctl.hosts.host import Host
from ipexctl.hosts.internal_addresses import internal_addresses
from ipexctl.remote.connector import OpenHosts
from ipexctl.remote.local import is_this_machine
from ipexctl.stack.catalog import StackSpec
from ipexctl.stack.expected_stack import choose_stack
from ipexctl.stack.resolve.model import StackRequest

_HOST_RULES: Final = (
    *host_system.RULES, *cpu_memory_rules.RULES, *network_rules.HOST_RULES, *software_rules.HOST_RULES,
    *host_environment.RULES,
)  # fmt: skip
_CLUSTER_RULES: Final = (*cluster_machines.RULES, *network_rules.CLUSTER_RULES, *software_rules.CLUSTER_RULES)


def examine_host(host: HostContext) -> tuple[Finding, ...]:
    """Return the findings about one host, worst first. On a system other than Linux, where no rank can run, only that
    is judged."""
    rules = _HOST_RULES
    if host.facts.system.kernel_name is not None and not host.facts.system.is_linux:
        # no rank can run on another system
        rules = (host_system.complete_probe, host_system.linux)
    findings = _worst_first(finding for rule in rules for finding in rule(host))
    return tuple(finding._replace(hosts=(host.name,)) for finding in findings)


def examine_cluster(hosts: Sequence[HostContext], *, iface: str | None = None) -> tuple[Finding, ...]:
    """Return the findings about several hosts together, worst first; empty for fewer than two. `iface`: the network
    that the user named, or None."""
    if len(hosts) < 2:
        return ()
    cluster = _cluster(hosts, iface)
    return _worst_first(finding for rule in _CLUSTER_RULES for finding in rule(cluster))


def _worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: -LEVELS.index(finding.level)))


def _cluster(hosts: Sequence[HostContext], iface: str | None) -> ClusterContext:
    """Return what the rules about several hosts read, with the addresses that a run would choose."""
    # Hosts with unknown interfaces do not prove that there is no common network.
    known = [node for node in hosts if node.facts.network.nics or node.host.internal]
    addresses = {node.name: addresses_of(node.facts, node.host.address) for node in known}
    chosen: dict[str, str] | Refusal = {}
    if len(known) > 1 and not all(node.internal for node in known):
        chosen = internal_addresses(addresses, [node.host for node in known], iface)
    if isinstance(chosen, Refusal):
        return ClusterContext(tuple(hosts), addresses, iface, chosen)
    nodes = tuple(node._replace(internal=node.internal or chosen.get(node.name)) for node in hosts)
    return ClusterContext(nodes, addresses, iface)


class DoctorRequest(NamedTuple):
    """What a call of doctor asks for."""

    rows: tuple[StackSpec, ...]
    """The version table."""
    node0_of: Callable[[str], Host | None]
    """ID of a run → its node0, as the control machine recorded it; None if it knows no such run."""
    require: str | None = None
    """Instruction set that each processor must have; None for any."""
    network: bool = True
    """False to leave out the check of the network."""
    smoke: bool = False
    """True to measure hosts and links, too."""
    ipex_use: str = ""
    """Where the project uses IPEX; empty if it does not."""


def run_doctor(opened: OpenHosts, probed: Iterable[HostFacts], request: DoctorRequest) -> DoctorReport:
    """Return the report on these hosts. `probed`: the answers of all hosts, also of those that failed. The network is
    checked only if at least two hosts can be reached."""
    started, hosts, pool = time.monotonic(), opened.hosts, opened.pool
    answers = {answer.host.name: answer for answer in probed}
    facts = {host.name: known for host in hosts if (known := answers[host.name].facts) is not None}
    chosen = addresses_among(hosts, facts, opened.iface)
    internal = {} if isinstance(chosen, Refusal) else chosen  # if `chosen` is a Refusal, the cluster's rules report it
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
                others=len(facts) - 1,
                node0=host == hosts[0],
                is_control=is_this_machine(host),
                skew=skew.seconds if skew else None,
                uncertainty=skew.uncertainty if skew else None,
                runs=runs,
                has_one_session=answers[host.name].has_one_session,
                shell_seconds=answers[host.name].shell_seconds,
            )
    cluster = list(examine_cluster(tuple(contexts.values()), iface=opened.iface))
    reached = [host for host in hosts if answers[host.name].status == "ok"]
    advice = recommend(facts, internal, choose_stack(StackRequest(), facts, request.rows, ipex_use=request.ipex_use))
    network_seconds = None
    open_outside: frozenset[str] = frozenset()
    if request.network and len(reached) > 1 and internal:
        from ipexctl.doctor.network_check import check_network

        network = check_network(
            pool,
            reached,
            internal,
            facts=facts,
            delays={name: answer.shell_seconds for name, answer in answers.items()},
        )
        cluster += network.findings
        network_seconds, open_outside = network.seconds, network.open_outside
    cluster += overflow_findings(facts, internal, open_outside)
    if request.smoke and reached:
        smoke = measure(pool, reached, internal, facts)
        cluster += smoke.findings
        remember({facts[host.name].hardware: host.speeds for host in smoke.hosts if host.name in facts and host.speeds})
    about = findings_by_host(cluster, list(answers))
    return DoctorReport(
        hosts=tuple(
            host_report(answers[host.name], contexts.get(host.name), request.require, about[host.name])
            for host in hosts
        ),
        cluster=ClusterReport(merge_findings(cluster)),
        recommendation=advice,
        seconds=time.monotonic() - started,
        network_seconds=network_seconds,
    )


def findings_by_host(cluster: Iterable[Finding], names: Sequence[str]) -> dict[str, list[Finding]]:
    """Return host → the findings of the cluster that count for it. A fail that names no host goes to all."""
    by_host: dict[str, list[Finding]] = {name: [] for name in names}
    for finding in cluster:
        for name in finding.hosts or (names if finding.level == "fail" else ()):
            by_host.setdefault(name, []).append(finding)
    return by_host


def host_report(
    answer: HostFacts, context: HostContext | None, require: str | None, about: Sequence[Finding]
) -> HostReport:
    """Return the report on one host, with its own findings. `context`: None if it gave no facts. `require`: instruction
    set that its processor must have, or None. `about`: findings of the cluster, which count only for its status."""
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
    """Return the failure of a host whose CPU lacks the required instruction set; empty if none is required, or the CPU
    has it."""
    has = host.facts.cpu.tier
    if tier is None or (has is not None and TIERS.index(has) >= TIERS.index(tier)):
        return ()
    problem = "the instruction set of this CPU could not be read" if has is None else f"this CPU has only {has}"
    message = f"--require {tier}: {problem}"
    return (
        Finding("cpu.require", "fail", message, "leave it out: --limit '!NAME', or require a lower tier", (host.name,)),
    )
