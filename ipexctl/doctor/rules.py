"""All rules over one host and over the hosts together. Pure: facts in, findings out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.doctor import cluster_machines, cluster_network, cluster_software
from ipexctl.doctor.context import Cluster, HostContext, Member, main_nic
from ipexctl.doctor.finding import LEVELS
from ipexctl.doctor.host_cpu import check_cpu
from ipexctl.doctor.host_environment import check_environment
from ipexctl.doctor.host_memory import check_memory
from ipexctl.doctor.host_network import check_network_settings
from ipexctl.doctor.host_software import check_software
from ipexctl.doctor.host_system import check_system, complete, linux
from ipexctl.facts.internal import addresses_of
from ipexctl.hosts.internal import internal_addresses
from ipexctl.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ipexctl.doctor.finding import Finding
    from ipexctl.facts.facts import Facts
    from ipexctl.hosts.host import Host

_HOST_CHECKS: Final = (
    check_system, check_cpu, check_memory, check_network_settings, check_software, check_environment,
)  # fmt: skip
_CLUSTER_RULES: Final = (*cluster_machines.RULES, *cluster_network.RULES, *cluster_software.RULES)


def examine_host(facts: Facts, context: HostContext) -> tuple[Finding, ...]:
    """The findings about this host, the worst first. A missing fact is never a finding against the host."""
    if facts.system.kernel_name is not None and not facts.system.is_linux:
        # no rank can run on another system, so the other rules do not matter
        found = [*complete(facts), *linux(facts)]
    else:
        found = [finding for check in _HOST_CHECKS for finding in check(facts, context)]
    found.sort(key=lambda finding: -LEVELS.index(finding.level))
    return tuple(finding._replace(hosts=(context.name,)) for finding in found)


def examine_cluster(
    hosts: Sequence[tuple[Host, Facts]],
    contexts: Mapping[str, HostContext] | None = None,
    *,
    iface: str | None = None,
) -> tuple[Finding, ...]:
    """The findings about the hosts together, the worst first; none for a single host.

    `contexts`: those the hosts were examined with, by name; they have clocks and addresses.
    """
    if len(hosts) < 2:
        return ()
    cluster = _cluster(hosts, contexts or {}, iface)
    found = [finding for rule in _CLUSTER_RULES for finding in rule(cluster)]
    return tuple(sorted(found, key=lambda finding: -LEVELS.index(finding.level)))


def _cluster(hosts: Sequence[tuple[Host, Facts]], contexts: Mapping[str, HostContext], iface: str | None) -> Cluster:
    given = [
        (host, facts, contexts.get(host.name) or HostContext(host.name, host.address, host.internal))
        for host, facts in hosts
    ]
    # a host without known interfaces does not mean that there is no common network
    known = [(host, facts, context) for host, facts, context in given if facts.network.nics or host.internal]
    addresses = {host.name: addresses_of(facts, context.address) for host, facts, context in known}
    chosen: dict[str, str] | Refusal = {}
    if len(known) > 1 and not all(context.internal for _, _, context in known):
        chosen = internal_addresses(addresses, [host for host, _, _ in known], iface)
    refusal = chosen if isinstance(chosen, Refusal) else None
    internal = {} if isinstance(chosen, Refusal) else chosen
    nodes = []
    for host, facts, context in given:
        placed = context._replace(internal=context.internal or internal.get(host.name))
        nodes.append(Member(host, facts, placed, main_nic(facts, placed)))
    return Cluster(tuple(nodes), addresses, iface, refusal)
