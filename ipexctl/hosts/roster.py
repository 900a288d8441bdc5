"""Collects hosts from lines: each once, at its first position, with the slots of repeated lines added up.

Not for inventories: their groups name a host many times without meaning more slots.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted

if TYPE_CHECKING:
    from typing import Any

    from ipexctl.hosts.host import Host

MAX_ENTRIES: Final = 1_000_000
_SINGLE_VALUES: Final = ("user", "port", "internal", "identity", "known_hosts", "ssh_config")


class RosterError(UserError):
    """Two lines that contradict each other; `place` is the number of the second."""

    def __init__(self, message: str, *, line: int, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.line = line


class Roster:
    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}
        self._lines: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._has_slots = False
        self._entries = 0

    def add(self, host: Host, line: int) -> None:
        """Add the host of one line; a value that contradicts an earlier line is an error."""
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise RosterError(
                f"more than {MAX_ENTRIES:,} hosts in one file", line=line, fix="look for a digit too many"
            )
        self._has_slots = self._has_slots or host.slots is not None
        first = self._hosts.get(host.name)
        if first is None:
            self._hosts[host.name] = host
            self._lines[host.name] = line
            return
        self._slots[host.name] = self._slots.get(host.name, first.slots or 1) + (host.slots or 1)
        if host != first:
            self._hosts[host.name] = self._merge(first, host, line)

    def hosts(self) -> tuple[Host, ...]:
        """All hosts in the order of their first lines."""
        if not self._slots:
            return tuple(self._hosts.values())
        return tuple(self._with_slots(host) for host in self._hosts.values())

    def _with_slots(self, host: Host) -> Host:
        slots = self._slots.get(host.name, host.slots)
        if slots is None and not self._has_slots:
            # Repeated hosts and no slots at all: the file is a $PBS_NODEFILE, where every line is one slot.
            slots = 1
        if slots == host.slots:
            return host
        if slots is not None and host.max_slots is not None and slots > host.max_slots:
            raise RosterError(
                f"the slots of {quoted(host.name)} add up to {slots}, more than max_slots={host.max_slots}",
                line=self._lines[host.name],
            )
        return replace(host, slots=slots)

    def _merge(self, first: Host, second: Host, line: int) -> Host:
        changes: dict[str, Any] = {}
        for key in _SINGLE_VALUES:
            changes[key] = self._merge_value(key, getattr(first, key), getattr(second, key), second.name, line)
        first_value, second_value = (host.address if host.address != host.name else None for host in (first, second))
        changes["address"] = self._merge_value("address", first_value, second_value, second.name, line) or first.name
        limits = [host.max_slots for host in (first, second) if host.max_slots is not None]
        changes["max_slots"] = sum(limits) if limits else None
        return replace(first, **changes)

    def _merge_value(self, key: str, first_value: Any, second_value: Any, name: str, line: int) -> Any:
        if None not in (first_value, second_value) and first_value != second_value:
            before = self._lines[name]
            raise RosterError(
                f"{quoted(name)} has {key} {quoted(str(second_value))} here and {quoted(str(first_value))} "
                + ("before" if before == line else f"in line {before}"),
                line=line,
                fix="if these are two machines, give them two names and say address=",
            )
        return first_value if first_value is not None else second_value
