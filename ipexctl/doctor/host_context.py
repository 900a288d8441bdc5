"""What a rule over one host is given beside the facts, and the words all rules share. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ipexctl.doctor.finding import Finding
from ipexctl.facts.facts import Facts
from ipexctl.facts.internal import joining

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ipexctl.doctor.run_states import RunState
    from ipexctl.facts.cpu import Cpu
    from ipexctl.facts.network import Nic

MB: Final = 1 << 20
GB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class HostContext:
    """A host's place in the call: how we and the others reach it, and how far its clock is from ours."""

    name: str
    address: str
    internal: str | None = None
    """The address the others use, where one is chosen already."""
    reached: str | None = None
    """Its own address that we came in by, where that is known."""
    peers: tuple[str, ...] = ()
    """The names of the other hosts of this call."""
    node0: bool = False
    skew: float | None = None
    """Seconds its clock is ahead of ours, give or take `uncertainty`."""
    uncertainty: float | None = None
    runs: Mapping[str, RunState] = field(default_factory=dict, hash=False)
    """The state of every run that a host of this call names, by the answers of all."""

    @property
    def alone(self) -> bool:
        return not self.peers


Rule = Callable[[Facts], Iterator[Finding]]
RuleInContext = Callable[[Facts, HostContext], Iterator[Finding]]


def quoted_output(facts: Facts, part: str) -> bool:
    """Whether the probe said all it had to say of a part: only then does nothing mean none."""
    return part not in facts.cut and (facts.complete or bool(facts.cut))


def size(count: float) -> str:
    """Bytes for people: `64 MB`, `1.5 GB`."""
    for unit, bytes_ in (("TB", 1 << 40), ("GB", GB), ("MB", MB)):
        if count >= bytes_:
            value = count / bytes_
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
    return f"{count / 1024:.0f} KB"


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def few(words: list[str] | tuple[str, ...], most: int = 4) -> str:
    """`a, b, c and 5 more`: a message stays a line."""
    if len(words) <= most:
        return ", ".join(words)
    return f"{', '.join(words[:most])} and {len(words) - most} more"


def minor_of(version: str | None) -> tuple[int, int] | None:
    """`2.8.0+cpu` → (2, 8)."""
    parts = (version or "").split("+")[0].split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1])


_APT: Final = frozenset({"debian", "ubuntu", "linuxmint", "pop", "raspbian"})
_DNF: Final = frozenset({"rhel", "centos", "rocky", "almalinux", "fedora", "ol", "amzn"})
_ZYPPER: Final = frozenset({"sles", "sled", "opensuse-leap", "opensuse-tumbleweed"})


def package_command(facts: Facts, apt: str, dnf: str, zypper: str) -> str:
    """The distribution's own command; where we don't know it, the packages' Debian names."""
    distro = facts.system.distro_id
    if distro in _APT:
        return f"as root: apt-get install -y {apt}"
    if distro in _DNF:
        return f"as root: {'yum' if (facts.system.distro_version or '').startswith('7') else 'dnf'} install -y {dnf}"
    if distro in _ZYPPER:
        return f"as root: zypper install -y {zypper}"
    return f"as root, with this system's package manager, install {apt}"


def usable_cores(cpu: Cpu) -> int | None:
    """`cpu.allowed`, without going over every core where no mask holds any back."""
    if cpu.quota is None and cpu.cores and cpu.affinity in (None, cpu.online):
        return cpu.cores
    return cpu.allowed


def main_nic(facts: Facts, context: HostContext) -> Nic | None:
    """The interface training would use: that of the address the others know, or we do; else the default route's."""
    network = facts.network
    for wanted in (context.internal, context.reached, context.address):
        for nic in network.nics:
            if wanted and any(address.address == wanted for address in nic.addresses):
                return nic
    if context.internal:
        return None
    routed = network.nic(network.default_route.iface) if network.default_route else None
    if routed and joining(routed):
        return routed
    return next((nic for nic in network.nics if joining(nic)), None)
