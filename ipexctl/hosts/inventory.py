"""Groups, hosts and variables of an Ansible inventory, merged by Ansible's precedence.

`inventory_ini` and `inventory_yaml` fill it; `inventory_vars` interprets variables for ssh.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from ipexctl.hosts.hostword import read_host_word
from ipexctl.hosts.inventory_vars import Setting, host_from
from ipexctl.hosts.names import WordError, quoted
from ipexctl.hosts.nodeset import expand_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ipexctl.errors import FileError
    from ipexctl.hosts.host import Host
    from ipexctl.hosts.source import Source

ALL: Final = "all"
UNGROUPED: Final = "ungrouped"
MAX_DEPTH: Final = 100
MAX_ENTRIES: Final = 1_000_000
_LOWEST_SSH_PORT: Final = 22


@dataclass(slots=True)
class Group:
    children: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Each child with its line and column."""
    vars: dict[str, Setting] = field(default_factory=dict)


class Inventory:
    """Filled line by line; then `hosts` returns the hosts."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.groups: dict[str, Group] = {ALL: Group(), UNGROUPED: Group()}
        self._host_vars: dict[str, dict[str, Setting]] = {}
        self._host_groups: dict[str, dict[str, None]] = {}
        self._positions: dict[str, tuple[int, int]] = {}
        self._entries = 0

    def group(self, name: str) -> Group:
        return self.groups.setdefault(name, Group())

    def suggest(self, name: str) -> str:
        """The fix for an undeclared group."""
        similar = get_close_matches(name, self.groups, n=1)
        return f"did you mean {similar[0]}?" if similar else f"declare it with a [{name}] section"

    def add_child(self, parent: str, child: str, line: int, column: int) -> None:
        if child == ALL:
            raise self.source.error(line, column, "'all' holds every group and can't be a child of one")
        self.group(child)
        self.group(parent).children.setdefault(child, (line, column))

    def add_hosts(self, group: str, pattern: str, settings: Mapping[str, Setting], line: int, column: int) -> None:
        """Add every host of a pattern, `user@node[01:10].site:2222`, with its variables to a group."""
        try:
            word = read_host_word(pattern, column=column, names_of=expand_ranges)
            own = dict(settings)
            if word.number:
                _refuse_slots(word.number, word.number_column)
                own.setdefault("ansible_port", Setting(word.number, line, word.number_column))
        except WordError as error:
            raise self.source.word_error(line, error) from None
        if word.user is not None:
            own.setdefault("ansible_user", Setting(word.user, line, column))
        self._entries += len(word.names)
        if self._entries > MAX_ENTRIES:
            raise self.source.error(line, column, f"more than {MAX_ENTRIES:,} hosts in one inventory")
        self.group(group)
        for name in word.names:
            self._host_vars.setdefault(name, {}).update(own)
            self._host_groups.setdefault(name, {})[group] = None
            self._positions.setdefault(name, (line, column))

    def hosts(self) -> tuple[Host, ...]:
        """Every host in the order of the file, with variables merged: all, then parents, children, the host."""
        order = self._by_depth()
        parents = self._parents()
        shared: dict[tuple[str, ...], tuple[tuple[str, ...], dict[str, Setting]]] = {}
        hosts: list[Host] = []
        for name, own in self._host_vars.items():
            direct = tuple(self._host_groups[name])
            if direct not in shared:
                shared[direct] = self._inherited(direct, order, parents)
            groups, settings = shared[direct]
            host = host_from(self.source, name, self._positions[name], groups, {**settings, **own})
            hosts.append(replace(host, shared=frozenset(host.vars.keys() - own.keys())))
        return tuple(hosts)

    def _inherited(
        self, direct: Iterable[str], order: Mapping[str, int], parents: Mapping[str, list[str]]
    ) -> tuple[tuple[str, ...], dict[str, Setting]]:
        ancestors: set[str] = set()
        pending = list(direct)
        while pending:
            group = pending.pop()
            if group not in ancestors:
                ancestors.add(group)
                pending.extend(parents[group])
        ancestors.discard(ALL)
        ancestors.discard(UNGROUPED)
        ancestors = ancestors or {UNGROUPED}
        groups = tuple(sorted(ancestors, key=lambda group: (order[group], self._priority(group), group)))
        settings = dict(self.groups[ALL].vars)
        for group in groups:
            settings.update(self.groups[group].vars)
        settings.pop("ansible_group_priority", None)
        return groups, settings

    def _priority(self, group: str) -> int:
        setting = self.groups[group].vars.get("ansible_group_priority")
        return int(setting.text) if setting is not None and setting.text.isdecimal() and len(setting.text) < 10 else 1

    def _parents(self) -> dict[str, list[str]]:
        parents: dict[str, list[str]] = {name: [] for name in self.groups}
        for name, group in self.groups.items():
            for child in group.children:
                parents[child].append(name)
        return parents

    def _by_depth(self) -> dict[str, int]:
        """The depth of each group below `all`, by its longest path; a cycle of groups is an error."""
        missing_parents = {name: len(ancestors) for name, ancestors in self._parents().items()}
        depth = dict.fromkeys(self.groups, 1)
        ready = [name for name, count in missing_parents.items() if count == 0]
        while ready:
            name = ready.pop()
            for child, position in self.groups[name].children.items():
                depth[child] = max(depth[child], depth[name] + 1)
                if depth[child] > MAX_DEPTH:
                    raise self.source.error(*position, f"groups are nested more than {MAX_DEPTH} deep")
                missing_parents[child] -= 1
                if missing_parents[child] == 0:
                    ready.append(child)
        in_cycle = {name for name, count in missing_parents.items() if count}
        if in_cycle:
            raise self._cycle(in_cycle)
        return depth

    def _cycle(self, in_cycle: set[str]) -> FileError:
        parents = self._parents()
        trail: dict[str, None] = {}
        name = min(in_cycle)
        while name not in trail:
            trail[name] = None
            name = next(parent for parent in parents[name] if parent in in_cycle)
        ring = list(self._ring(list(trail), name))
        places = [(self.groups[parent].children[child], child) for parent, child in pairwise(ring)]
        (line, column), _ = max(places)
        shown = " > ".join(ring[:8]) + (" > …" if len(ring) > 8 else "")
        return self.source.error(line, column, f"these groups hold each other: {shown}", fix="take one of them out")

    @staticmethod
    def _ring(trail: list[str], start: str) -> Iterator[str]:
        yield start
        yield from reversed(trail[trail.index(start) :])


def _refuse_slots(number: str, column: int) -> None:
    if number.isdecimal() and len(number) < 3 and int(number) < _LOWEST_SSH_PORT:
        raise WordError(
            f"in an Ansible inventory {quoted(':' + number)} is the ssh port, not slots",
            column=column,
            fix=f"slots={number} says the slots, ansible_port={number} the port",
        )
