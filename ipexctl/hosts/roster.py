"""Hosts being collected from lines: each once, at its first place, the slots of its repeats added up.

An inventory doesn't repeat hosts in this sense: its groups name one host many times without meaning more slots.
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
_ONE_VALUE: Final = ("user", "port", "internal", "identity", "known_hosts", "ssh_config")


class RosterError(UserError):
    """Two lines that don't agree; `place` is the line at fault."""

    def __init__(self, message: str, *, place: int, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.place = place


class Roster:
    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}
        self._places: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._says_slots = False
        self._entries = 0

    def add(self, host: Host, place: int) -> None:
        """Add what one line says of a host; whatever it says otherwise than an earlier line is an error."""
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise RosterError(
                f"more than {MAX_ENTRIES:,} hosts in one file", place=place, fix="look for a digit too many"
            )
        self._says_slots = self._says_slots or host.slots is not None
        first = self._hosts.get(host.name)
        if first is None:
            self._hosts[host.name] = host
            self._places[host.name] = place
            return
        self._slots[host.name] = self._slots.get(host.name, first.slots or 1) + (host.slots or 1)
        if host != first:
            self._hosts[host.name] = self._merged(first, host, place)

    def hosts(self) -> tuple[Host, ...]:
        """All hosts in the order of their first lines."""
        if not self._slots:
            return tuple(self._hosts.values())
        return tuple(self._with_slots(host) for host in self._hosts.values())

    def _with_slots(self, host: Host) -> Host:
        slots = self._slots.get(host.name, host.slots)
        if slots is None and not self._says_slots:
            # Repeats and no other slots at all: the file is a $PBS_NODEFILE, where every line is one slot.
            slots = 1
        if slots == host.slots:
            return host
        if slots is not None and host.max_slots is not None and slots > host.max_slots:
            raise RosterError(
                f"the slots of {quoted(host.name)} add up to {slots}, more than max_slots={host.max_slots}",
                place=self._places[host.name],
            )
        return replace(host, slots=slots)

    def _merged(self, first: Host, again: Host, place: int) -> Host:
        changes: dict[str, Any] = {}
        for key in _ONE_VALUE:
            changes[key] = self._agreed(key, getattr(first, key), getattr(again, key), again.name, place)
        one, other = (host.address if host.address != host.name else None for host in (first, again))
        changes["address"] = self._agreed("address", one, other, again.name, place) or first.name
        limits = [host.max_slots for host in (first, again) if host.max_slots is not None]
        changes["max_slots"] = sum(limits) if limits else None
        return replace(first, **changes)

    def _agreed(self, key: str, one: Any, other: Any, name: str, place: int) -> Any:
        if None not in (one, other) and one != other:
            before = self._places[name]
            raise RosterError(
                f"{quoted(name)} has {key} {quoted(str(other))} here and {quoted(str(one))} "
                + ("before" if before == place else f"in line {before}"),
                place=place,
                fix="if these are two machines, give them two names and say address=",
            )
        return one if one is not None else other
