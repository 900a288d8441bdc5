"""All rules over several hosts, and every id there is. Pure: facts in, findings out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.doctor import cluster_machines, cluster_network, cluster_software
from ipexctl.doctor.cluster_context import Cluster, Member, addresses_of
from ipexctl.doctor.finding import LEVELS, Finding
from ipexctl.doctor.host_context import HostContext
from ipexctl.doctor.host_rules import HOST_IDS
from ipexctl.hosts.internal import NoCommonNetwork, internal_addresses

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host

_SUBJECTS: Final = (cluster_machines, cluster_network, cluster_software)
_RULES: Final = tuple(rule for subject in _SUBJECTS for rule in subject.RULES)

CLUSTER_IDS: Final[Mapping[str, str]] = {id_: line for subject in _SUBJECTS for id_, line in subject.IDS.items()}
ALL_IDS: Final[Mapping[str, str]] = {**HOST_IDS, **CLUSTER_IDS}
"""Every id a rule may use, with what it says; docs/findings.md has a paragraph for each."""


def examine_cluster(
    hosts: Sequence[tuple[Host, Facts]],
    contexts: Mapping[str, HostContext] | None = None,
    *,
    iface: str | None = None,
) -> tuple[Finding, ...]:
    """What is to be said of hosts together, the worst first. Of one host alone, nothing.

    `contexts` are those the hosts were examined with, by name: clocks and chosen addresses come from there.
    """
    if len(hosts) < 2:
        return ()
    cluster = _cluster(hosts, contexts or {}, iface)
    found = [finding for rule in _RULES for finding in rule(cluster)]
    return tuple(sorted(found, key=lambda finding: -LEVELS.index(finding.level)))


def _cluster(hosts: Sequence[tuple[Host, Facts]], contexts: Mapping[str, HostContext], iface: str | None) -> Cluster:
    everyone = tuple(host.name for host, _ in hosts)
    members = []
    for host, facts in hosts:
        context = contexts.get(host.name) or HostContext(
            host.name, host.address, host.internal, peers=tuple(name for name in everyone if name != host.name)
        )
        members.append(Member(host, facts, context))
    # A host whose interfaces weren't heard is no reason to say there is no network.
    known = [m for m in members if m.facts.network.nics or m.host.internal]
    addresses = {m.name: addresses_of(m.facts, m.context.reached or m.context.address) for m in known}
    chosen: dict[str, str] | NoCommonNetwork = {}
    if len(known) > 1 and not all(m.context.internal for m in known):
        chosen = internal_addresses(addresses, [m.host for m in known], iface)
    if isinstance(chosen, NoCommonNetwork):
        return Cluster(tuple(members), addresses, iface, chosen)
    placed = (_placed(member, chosen.get(member.name)) for member in members)
    return Cluster(tuple(placed), addresses, iface)


def _placed(member: Member, internal: str | None) -> Member:
    if internal is None or member.context.internal:
        return member
    context = member.context
    return Member(
        member.host,
        member.facts,
        HostContext(
            name=context.name,
            address=context.address,
            internal=internal,
            reached=context.reached,
            peers=context.peers,
            node0=context.node0,
            skew=context.skew,
            uncertainty=context.uncertainty,
        ),
    )


def merge_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One of each: what is said alike of several hosts is said once, of all of them, in the order they came."""
    merged: dict[tuple[str, str, str, str], list[str]] = {}
    kept: dict[tuple[str, str, str, str], Finding] = {}
    for finding in findings:
        key = (finding.id, finding.level, finding.message, finding.fix)
        kept.setdefault(key, finding)
        merged.setdefault(key, []).extend(finding.hosts)
    return tuple(
        Finding(finding.id, finding.level, finding.message, finding.fix, tuple(dict.fromkeys(merged[key])))
        for key, finding in kept.items()
    )
