"""Runs all rules over each host and over the hosts together. Pure: facts in, findings out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ipexctl.doctor import (
    cluster_machines,
    cluster_network,
    cluster_software,
    host_cpu,
    host_environment,
    host_memory,
    host_network,
    host_software,
    host_system,
)
from ipexctl.doctor.context import ClusterContext
from ipexctl.doctor.finding import LEVELS
from ipexctl.facts.internal import addresses_of
from ipexctl.hosts.internal import internal_addresses
from ipexctl.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipexctl.doctor.context import HostContext
    from ipexctl.doctor.finding import Finding

_HOST_RULES: Final = (
    *host_system.RULES, *host_cpu.RULES, *host_memory.RULES, *host_network.RULES, *host_software.RULES,
    *host_environment.RULES,
)  # fmt: skip
_CLUSTER_RULES: Final = (*cluster_machines.RULES, *cluster_network.RULES, *cluster_software.RULES)


def examine_host(host: HostContext) -> tuple[Finding, ...]:
    rules = _HOST_RULES
    if host.facts.system.kernel_name is not None and not host.facts.system.is_linux:
        # no rank can run on another system
        rules = (host_system.complete, host_system.linux)
    found = _worst_first(finding for rule in rules for finding in rule(host))
    return tuple(finding._replace(hosts=(host.name,)) for finding in found)


def examine_cluster(hosts: Sequence[HostContext], *, iface: str | None = None) -> tuple[Finding, ...]:
    if len(hosts) < 2:
        return ()
    cluster = _cluster(hosts, iface)
    return _worst_first(finding for rule in _CLUSTER_RULES for finding in rule(cluster))


def _worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: -LEVELS.index(finding.level)))


def _cluster(hosts: Sequence[HostContext], iface: str | None) -> ClusterContext:
    # A host with unknown interfaces does not mean that there is no common network.
    known = [node for node in hosts if node.facts.network.nics or node.host.internal]
    addresses = {node.name: addresses_of(node.facts, node.host.address) for node in known}
    chosen: dict[str, str] | Refusal = {}
    if len(known) > 1 and not all(node.internal for node in known):
        chosen = internal_addresses(addresses, [node.host for node in known], iface)
    if isinstance(chosen, Refusal):
        return ClusterContext(tuple(hosts), addresses, iface, chosen)
    nodes = tuple(node._replace(internal=node.internal or chosen.get(node.name)) for node in hosts)
    return ClusterContext(nodes, addresses, iface)
