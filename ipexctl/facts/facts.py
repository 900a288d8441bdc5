"""Define `Facts`, the probe's result for one host, with its parser, its JSON, and the addresses between hosts. Nothing
here touches a host. The probe's output may be cut off: a missing value never counts against a host, and
`Facts.has_finished` distinguishes "none" from "unknown".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from ipexctl.errors import Refusal
from ipexctl.facts.cpu import Cpu, CpuList, cpu_json, parse_cpu
from ipexctl.facts.network_facts import Network, Nic, parse_network
from ipexctl.facts.probe import PARTS, Answers, read_answers, seconds
from ipexctl.facts.software import Env, Software, parse_software
from ipexctl.facts.system_facts import (
    Account,
    Activity,
    Batch,
    Disk,
    Environment,
    HomeDirectory,
    Limits,
    Logind,
    Memory,
    Security,
    System,
    parse_account,
    parse_activity,
    parse_batch,
    parse_environment,
    parse_home,
    parse_limits,
    parse_logind,
    parse_memory,
    parse_mounts,
    parse_security,
    parse_system,
    parse_tmp,
)
from ipexctl.hosts.host import Host
from ipexctl.hosts.internal_addresses import HostAddresses, InterfaceAddress, internal_addresses
from ipexctl.node.common.clock import stretched

_CARDS: Final = ("ethernet", "infiniband", "wifi")
_LOCAL_KINDS: Final = ("loopback", "docker", "libvirt", "veth")


def joining_addresses(nic: Nic) -> tuple[InterfaceAddress, ...]:
    """Return the addresses of an interface by which other hosts can reach it; none for a local one such as docker0."""
    if nic.kind in _LOCAL_KINDS:
        return ()
    candidates = (InterfaceAddress(nic.name, address.address, address.prefix) for address in nic.addresses)
    return tuple(address for address in candidates if address.joins_hosts)


def addresses_of(facts: Facts, address: str) -> HostAddresses:
    """Return the addresses of the host's interfaces, and the address at which it accepted this call's connection.
    `address` is used instead if the probe did not see one: it is how the control machine names the host, often a name,
    or an address that is translated on the way."""
    nics = tuple(address for nic in facts.network.nics for address in joining_addresses(nic))
    return HostAddresses(nics, facts.network.reached or address)


def addresses_among(hosts: Sequence[Host], facts: Mapping[str, Facts], iface: str | None) -> dict[str, str] | Refusal:
    """Return host → the address by which the others reach it; or the refusal, if the hosts share no network."""
    probed = [host for host in hosts if host.name in facts]
    known = {host.name: addresses_of(facts[host.name], host.address) for host in probed}
    return internal_addresses(known, probed, iface)


class Facts(NamedTuple):
    """The facts of one host. None or empty means unknown."""

    system: System = System()
    cpu: Cpu = Cpu()
    memory: Memory = Memory()
    limits: Limits = Limits()
    network: Network = Network()
    home: HomeDirectory | None = None
    tmp: Disk | None = None
    account: Account = Account()
    software: Software = Software()
    environment: Environment = Environment()
    logind: Logind = Logind()
    security: Security = Security()
    batch: Batch = Batch()
    activity: Activity = Activity()
    clock: float | None = None
    """The host's clock at the start of the probe, in seconds since 1970."""
    complete: bool = False
    cut: tuple[str, ...] = ()
    """Parts that the probe did not finish, because of a timeout or a lost connection."""

    def has_finished(self, part: str) -> bool:
        """True if the probe finished this part, so a missing fact means that there is none."""
        return part not in self.cut and (self.complete or bool(self.cut))

    @property
    def machine(self) -> str | None:
        """Return text that is equal for two names of one machine; None if its boot id is unknown. The MAC addresses
        distinguish containers on one kernel."""
        return "/".join([self.system.boot, *self._macs]) if self.system.boot else None

    @property
    def hardware(self) -> str:
        """Return a digest of processor and network cards that stays the same after a reboot; empty if either is
        unknown."""
        if not self._macs or not self.cpu.model_name:
            return ""
        return sha256(repr((self.cpu.model_name, self.cpu.allowed, self._macs)).encode()).hexdigest()[:16]

    @property
    def _macs(self) -> list[str]:
        """Return the MAC addresses of the network cards, sorted. Virtual interfaces come and go, so they count only on
        a host without a physical one, such as a container."""
        cards = [nic for nic in self.network.nics if nic.kind in _CARDS and nic.mac]
        return sorted(nic.mac or "" for nic in [nic for nic in cards if nic.physical] or cards)

    def store_of(self, host: str) -> str:
        """Return the token of the home's store. A host whose home is not known to be shared has a token of its own."""
        return (self.home.store if self.home else None) or f"alone:{host}"


def to_json(facts: Facts) -> dict[str, Any]:
    """Return the facts as JSON, without what belongs to this call's connection alone."""
    fields = _fields(facts)
    del fields["network"]["reached"]  # belongs to this call's connection, not to the host
    return {**fields, "machine": facts.machine}


def _plain(value: object) -> Any:
    """Return a value as JSON has it: a record as an object with its fields, a CPU list as the kernel prints it, and
    infinity as "unlimited"."""
    if isinstance(value, Cpu):
        return cpu_json(value)
    if isinstance(value, CpuList):
        return str(value)
    if isinstance(value, Env):
        named = {name: getattr(value, name) for name in ("torch", "ipex", "oneccl_bindings", "oneccl", "mpi")}
        return {**_fields(value), **named}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    return "unlimited" if value == math.inf else value


def _fields(value: Any) -> dict[str, Any]:
    return {name: _plain(item) for name, item in value._asdict().items()}


def parse(text: str) -> Facts:
    """Return the facts from the probe's output.

    What is missing or damaged there is None or empty; nothing is raised.
    """
    answers = read_answers(text)
    system = parse_system(answers)
    mounts = parse_mounts(answers)
    environment = parse_environment(answers)
    return Facts(
        system=system,
        cpu=parse_cpu(answers, system.arch),
        memory=parse_memory(answers, mounts),
        limits=parse_limits(answers),
        network=parse_network(answers),
        home=parse_home(answers, mounts),
        tmp=parse_tmp(answers, mounts),
        account=parse_account(answers),
        software=parse_software(answers),
        environment=environment,
        logind=parse_logind(answers),
        security=parse_security(answers),
        batch=parse_batch(answers, environment),
        activity=parse_activity(answers),
        clock=seconds(answers.first("clock")),
        complete="end" in answers,
        cut=_cut(answers),
    )


def slowness(hosts: Iterable[Facts]) -> float:
    """Return how many times longer a step takes on the busiest of these hosts, by their load; 1.0 if no load is
    known."""
    loads = ((facts.activity.load, facts.cpu.threads) for facts in hosts)
    return max((stretched(1.0, load[0], cores) for load, cores in loads if load and cores), default=1.0)


def _cut(answers: Answers) -> tuple[str, ...]:
    """Return the parts that the probe did not finish. They include `names` if a lookup timed out."""
    finished = set(answers.all("done"))
    known = len({line.partition(" ")[0] for line in answers.all("resolved")})
    if known <= len(answers.words("peers")) and any(line.startswith("getent ") for line in answers.all("tool")):
        finished.discard("names")
    return tuple(part for part in PARTS if part not in finished)
