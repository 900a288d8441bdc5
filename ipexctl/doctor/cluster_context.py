"""What a rule over several hosts is given, and how it finds who differs from the rest. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ipexctl.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.doctor.host_context import HostContext
    from ipexctl.facts.facts import Facts
    from ipexctl.facts.network import Nic
    from ipexctl.hosts.host import Host
    from ipexctl.hosts.internal import HostAddresses, NoCommonNetwork

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Member:
    """One host among others."""

    host: Host
    facts: Facts
    context: HostContext
    nic: Nic | None
    """The interface training would use."""

    @property
    def name(self) -> str:
        return self.host.name


@dataclass(frozen=True, slots=True)
class Cluster:
    """The hosts that answered, in the file's order, and the addresses chosen for them."""

    nodes: tuple[Member, ...]
    addresses: Mapping[str, HostAddresses]
    iface: str | None = None
    """What the caller said of the network, if anything."""
    refusal: NoCommonNetwork | None = None
    """Why no addresses could be chosen."""

    @property
    def runnable(self) -> tuple[Member, ...]:
        """Those a rank could run on at all: a Mac in the list says nothing about the others' memory."""
        return tuple(node for node in self.nodes if node.facts.system.kernel_name in (None, "Linux"))


Rule = Callable[[Cluster], Iterator[Finding]]


def groups(nodes: tuple[Member, ...], key: Callable[[Member], Key | None]) -> dict[Key, list[str]]:
    """Names by what they have, the most common first; who has None is in none."""
    found: defaultdict[Key, list[str]] = defaultdict(list)
    for node in nodes:
        value = key(node)
        if value is not None:
            found[value].append(node.name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def odd_ones(found: Mapping[Key, list[str]]) -> tuple[Key, list[Key], tuple[str, ...]]:
    """What most have, what the others have, and who they are. Of two equal halves the first is the usual one."""
    usual, *others = found
    return usual, others, tuple(name for value in others for name in found[value])


def span(low: float, high: float) -> str:
    """`8`, or `8 to 16`."""
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
