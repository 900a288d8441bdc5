"""One message and one fix for hosts whose failures differ only in their names, addresses or keys. Pure."""

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
    @property
    def host(self) -> Host: ...
    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def fix(self) -> str: ...


def merge_failures(results: Iterable[HostFailure]) -> dict[str, tuple[str, str]]:
    """Reason and fix to print for an unreachable host, equal for hosts that are folded. Only for these: what is typed
    for other failures may have to be typed on the host itself, where a loop over the hosts would be wrong.
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
    return reason.plural if isinstance(reason, SharedReason) else reason


def _merged_reason(group: Sequence[HostFailure]) -> str:
    owns = [f"{each.host.name} {each.reason.own}" for each in group if isinstance(each.reason, SharedReason)]
    return f"{_shared(group[0].reason)}: {', '.join(owns)}" if owns and len(group) > 1 else group[0].reason


def _merged_fix(group: Sequence[HostFailure]) -> str | None:
    """None if the commands differ in more than the hosts."""
    names = [each.host.name for each in group]
    merged: list[Part] = []
    for same_place in zip(*(parts_of(each.fix) for each in group), strict=True):
        commands = [part for part in same_place if isinstance(part, FixCommand)]
        part = _merged_command(names, commands) if commands else same_place[0]
        if part is None:
            return None
        merged.append(part)
    return Fix.of(merged)


def _merged_command(names: Sequence[str], commands: Sequence[FixCommand]) -> FixCommand | None:
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
    differing = [at for at, column in enumerate(columns) if len({*column}) > 1]
    if len({*map(len, rows)}) > 1 or len(differing) != 1 or any(command.options for command in commands):
        return None
    at = differing[0]
    user = re.match(r"(?:[\w.+-]+@)?", columns[at][0])
    before = user[0] if user and all(word.startswith(user[0]) for word in columns[at]) else ""
    words = [word[len(before) :] for word in columns[at]]
    if not all(map(_is_one_word, words)):
        return None
    line = " ".join((*rows[0][:at], f'{before}"$host"', *rows[0][at + 1 :]))
    return FixCommand(f"for host in {' '.join(words)}; do {line}; done")


def _is_one_word(text: str) -> bool:
    try:
        return len(shlex.split(text)) == 1
    except ValueError:  # a part of a quoted word with blanks
        return False
