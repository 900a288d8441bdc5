"""Merge failures of hosts that differ only in names, addresses or keys into one message and one fix. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Protocol

from ipexctl.hosts.host import Host
from ipexctl.hosts.nodeset import fold
from ipexctl.node.common.fix import Fix, FixCommand, Part, parts_of
from ipexctl.remote.outcome import SharedReason


class HostFailure(Protocol):
    """A host that failed."""

    @property
    def host(self) -> Host:
        """The host that failed."""

    @property
    def status(self) -> str:
        """As in `HostResult`."""

    @property
    def reason(self) -> str:
        """Why the host failed."""

    @property
    def fix(self) -> str:
        """What to type; empty if nothing is known."""


def merge_failures(results: Iterable[HostFailure]) -> dict[str, tuple[str, str]]:
    """Return reason and fix to print for each unreachable host: host → (reason, fix), equal for hosts that are folded.

    Only unreachable hosts are merged. What is typed for other failures may have to be typed on the host itself, where a
    loop over the hosts would be wrong.
    """
    groups: dict[tuple[object, ...], list[HostFailure]] = {}
    for result in results:
        if result.status == "unreachable":
            prose = (part if isinstance(part, str) else None for part in parts_of(result.fix))
            groups.setdefault((_shared(result.reason), *prose), []).append(result)
    merged: dict[str, tuple[str, str]] = {}
    for group in groups.values():
        if (fix := _merged_fix(group)) is not None:
            merged.update({result.host.name: (_merged_reason(group), fix) for result in group})
    return merged


def _shared(reason: str) -> str:
    """Return the part of a reason that hosts may have in common."""
    return reason.plural if isinstance(reason, SharedReason) else reason


def _merged_reason(group: Sequence[HostFailure]) -> str:
    """Return the common reason, with what each host has of its own."""
    own_parts = [
        f"{failure.host.name} {failure.reason.own}" for failure in group if isinstance(failure.reason, SharedReason)
    ]
    return f"{_shared(group[0].reason)}: {', '.join(own_parts)}" if own_parts and len(group) > 1 else group[0].reason


def _merged_fix(group: Sequence[HostFailure]) -> str | None:
    """Return one fix for all hosts; None if the commands differ in more than the hosts."""
    names = [failure.host.name for failure in group]
    merged: list[Part] = []
    for parts_of_hosts in zip(*(parts_of(failure.fix) for failure in group), strict=True):
        commands = [part for part in parts_of_hosts if isinstance(part, FixCommand)]
        part = _merged_command(names, commands) if commands else parts_of_hosts[0]
        if part is None:
            return None
        merged.append(part)
    return Fix.of(merged)


def _merged_command(names: Sequence[str], commands: Sequence[FixCommand]) -> FixCommand | None:
    """Return one command for all hosts: with a list of hosts if it is ipexctl's, else a loop of the shell.

    None if that is not possible.
    """
    if len({*commands}) == 1:
        return commands[0]
    if commands[0].verb:
        same = {
            command._replace(options=tuple(fold(names) if word == name else word for word in command.options))
            for name, command in zip(names, commands, strict=True)
        }
        return same.pop() if len(same) == 1 else None
    rows = [command.start.split(" ") for command in commands]
    columns = [*zip(*rows, strict=False)]
    differing_columns = [at for at, column in enumerate(columns) if len({*column}) > 1]
    if len({*map(len, rows)}) > 1 or len(differing_columns) != 1 or any(command.options for command in commands):
        return None
    at = differing_columns[0]
    user = re.match(r"(?:[\w.+-]+@)?", columns[at][0])
    login = user[0] if user and all(word.startswith(user[0]) for word in columns[at]) else ""
    words = [word[len(login) :] for word in columns[at]]
    if not all(map(_is_one_word, words)):
        return None
    line = " ".join((*rows[0][:at], f'{login}"$host"', *rows[0][at + 1 :]))
    return FixCommand(f"for host in {' '.join(words)}; do {line}; done")


def _is_one_word(text: str) -> bool:
    """True if a shell reads the text as one word."""
    try:
        return len(shlex.split(text)) == 1
    except ValueError:  # a part of a quoted word with blanks
        return False
