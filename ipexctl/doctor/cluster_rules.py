"""All rules over several hosts, and every id there is. Pure: facts in, findings out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ipexctl.doctor import cluster_machines, cluster_network, cluster_software
from ipexctl.doctor.cluster_context import Cluster, Member
from ipexctl.doctor.finding import LEVELS, Finding
from ipexctl.doctor.host_context import HostContext, main_nic
from ipexctl.doctor.host_rules import HOST_IDS
from ipexctl.facts.internal import addresses_of
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
    given = [
        (host, facts, contexts.get(host.name) or HostContext(host.name, host.address, host.internal))
        for host, facts in hosts
    ]
    # A host whose interfaces weren't heard is no reason to say there is no network.
    known = [(host, facts, context) for host, facts, context in given if facts.network.nics or host.internal]
    addresses = {host.name: addresses_of(facts, context.reached or context.address) for host, facts, context in known}
    chosen: dict[str, str] | NoCommonNetwork = {}
    if len(known) > 1 and not all(context.internal for _, _, context in known):
        chosen = internal_addresses(addresses, [host for host, _, _ in known], iface)
    refusal = chosen if isinstance(chosen, NoCommonNetwork) else None
    internal = {} if isinstance(chosen, NoCommonNetwork) else chosen
    nodes = []
    for host, facts, context in given:
        placed = replace(context, internal=context.internal or internal.get(host.name))
        nodes.append(Member(host, facts, placed, main_nic(facts, placed)))
    return Cluster(tuple(nodes), addresses, iface, refusal)


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
