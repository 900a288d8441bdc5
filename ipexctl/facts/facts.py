"""Facts: the result of the probe of one host, and its JSON. Unknown values are missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from ipexctl.facts.cpu import Cpu, cpu_json
from ipexctl.facts.cpulist import CpuList
from ipexctl.facts.network import Network
from ipexctl.facts.software import Env, Software
from ipexctl.facts.system import (
    Account,
    Activity,
    Batch,
    Environment,
    Limits,
    Logind,
    Memory,
    Security,
    System,
)

if TYPE_CHECKING:
    from ipexctl.facts.system import Disk, Home


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one host. None or empty means unknown."""

    system: System = field(default_factory=System)
    cpu: Cpu = field(default_factory=Cpu)
    memory: Memory = field(default_factory=Memory)
    limits: Limits = field(default_factory=Limits)
    network: Network = field(default_factory=Network)
    home: Home | None = None
    tmp: Disk | None = None
    account: Account = field(default_factory=Account)
    software: Software = field(default_factory=Software)
    environment: Environment = field(default_factory=Environment)
    logind: Logind = field(default_factory=Logind)
    security: Security = field(default_factory=Security)
    batch: Batch = field(default_factory=Batch)
    activity: Activity = field(default_factory=Activity)
    clock: float | None = None
    """The host's clock at the start of the probe, in seconds since 1970."""
    complete: bool = False
    """Whether the probe's last line arrived."""
    cut: tuple[str, ...] = ()
    """Parts of the probe that did not finish, because of the time limit or a lost connection."""

    @property
    def machine(self) -> str | None:
        """Identifies the machine: equal for two names of one machine.

        It has the kernel's boot id, and the MAC addresses, which distinguish containers on one kernel.
        """
        kinds = ("ethernet", "infiniband", "wifi")
        macs = sorted(nic.mac for nic in self.network.nics if nic.kind in kinds and nic.mac)
        return "/".join([self.system.boot, *macs]) if self.system.boot else None


def to_json(facts: Facts) -> dict[str, Any]:
    """The facts as JSON types, with the documented names."""
    return {**_fields(facts), "machine": facts.machine}


def _plain(value: object) -> Any:
    if isinstance(value, Cpu):
        return cpu_json(value)
    if isinstance(value, CpuList):
        return str(value)
    if isinstance(value, Env):
        named = {name: getattr(value, name) for name in ("torch", "ipex", "oneccl_bindings", "oneccl", "mpi")}
        return {**_fields(value), **named}
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    return "unlimited" if value == math.inf else value


def _fields(value: Any) -> dict[str, Any]:
    return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
