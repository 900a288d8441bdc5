"""The run as far as it is decided when variables are chosen: who takes part, with how many ranks, seated where."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipexctl.launch.plan import Setting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ipexctl.facts.facts import Facts
    from ipexctl.launch.binding import Binding
    from ipexctl.launch.plan import Backend, Flavor
    from ipexctl.launch.request import LaunchRequest
    from ipexctl.launch.topology import Cores


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """One host with ranks."""

    name: str
    facts: Facts
    address: str
    word: str
    first: int
    """Its first rank."""
    cores: Cores
    binding: Binding
    iface: str | None = None

    @property
    def count(self) -> int:
        return len(self.binding.seats)


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What every rule over variables looks at."""

    request: LaunchRequest
    nodes: tuple[NodeLayout, ...]
    backend: Backend
    flavor: Flavor
    workers: int
    """oneCCL's, for each rank."""
    wanted: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What the user set: rules that depend on such a value take it from here."""

    @property
    def alone(self) -> bool:
        """Whether one machine is the whole cluster."""
        return len(self.nodes) == 1

    @property
    def world_size(self) -> int:
        return sum(node.count for node in self.nodes)


Said = tuple[str | None, str]
"""A value and its reason."""


def each_host(nodes: tuple[NodeLayout, ...], name: str, say: Callable[[NodeLayout], Said | None]) -> list[Setting]:
    """A variable chosen for each host by itself; said once where all agree, in value and in reason."""
    said = {node.name: say(node) for node in nodes}
    different = set(said.values())
    if len(different) == 1:
        only = different.pop()
        return [] if only is None else [Setting(name, *only)]
    return [Setting(name, *one, host=host) for host, one in said.items() if one is not None]
