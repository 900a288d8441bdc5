"""All rules over one host, in the order a reader wants them. Pure: facts in, findings out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ipexctl.doctor import host_cpu, host_environment, host_memory, host_network, host_software
from ipexctl.doctor import host_system as host_places
from ipexctl.doctor.finding import LEVELS
from ipexctl.doctor.host_context import HostContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.doctor.finding import Finding
    from ipexctl.facts.facts import Facts

__all__ = ["HOST_IDS", "HostContext", "examine_host"]

_SUBJECTS: Final = (host_places, host_cpu, host_memory, host_network, host_software, host_environment)

HOST_IDS: Final[Mapping[str, str]] = {id_: line for subject in _SUBJECTS for id_, line in subject.IDS.items()}
_RULES: Final = tuple(rule for subject in _SUBJECTS for rule in subject.RULES)
_IN_CONTEXT: Final = (
    *host_places.IN_CONTEXT, *host_cpu.IN_CONTEXT, *host_memory.IN_CONTEXT, *host_network.IN_CONTEXT,
    *host_software.IN_CONTEXT,
)  # fmt: skip


def examine_host(facts: Facts, context: HostContext) -> tuple[Finding, ...]:
    """What is to be said of this host, the worst first. What we don't know is never held against it."""
    if facts.system.kernel_name is not None and not facts.system.is_linux:
        # Of a system nothing runs on there is no more to say.
        found = [*host_places.complete(facts), *host_places.linux(facts)]
    else:
        found = [finding for rule in _RULES for finding in rule(facts)]
        found += [finding for rule in _IN_CONTEXT for finding in rule(facts, context)]
    found.sort(key=lambda finding: -LEVELS.index(finding.level))
    return tuple(replace(finding, hosts=(context.name,)) for finding in found)
