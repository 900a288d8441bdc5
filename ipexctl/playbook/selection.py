"""Selects the hosts of a play and the tasks of a call. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.hosts.limit import limit_hosts, limit_parts
from ipexctl.hosts.names import quoted
from ipexctl.playbook.positions import Position, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.hosts.host import Host
    from ipexctl.playbook.model import Playbook, Task


def hosts_of(pattern: str, position: Position, hosts: Sequence[Host], node0: str = "") -> tuple[Host, ...]:
    """The matching hosts in the order of `hosts`; `node0` is the first host of the call."""
    parts = limit_parts(pattern, {known for host in hosts for known in (host.name, host.address)})
    terms = ["all" if part in ("all", "*") else (node0 or hosts[0].name) if part == "node0" else part for part in parts]
    intersected = [part.removeprefix("&") for part in terms if part.startswith("&")]
    included = [part for part in terms if not part.startswith("&")]
    if not terms:
        raise position.error("'hosts' names no host", fix="hosts: all")
    try:
        selected = limit_hosts(hosts, ",".join(included or ["all"]))
        for part in intersected:
            matching = {host.name for host in limit_hosts(hosts, part)}
            selected = tuple(host for host in selected if host.name in matching)
    except UserError as error:
        fix = "hosts: node0, and delegate_to: localhost with --local" if pattern == "localhost" else error.fix
        raise position.error(error.message.replace("--limit", "hosts", 1), fix=fix) from None
    return selected


_SPECIAL = frozenset({"all", "tagged", "untagged", "always", "never"})


@dataclass(frozen=True, slots=True)
class TaskSelection:
    tags: frozenset[str] = frozenset()
    skip_tags: frozenset[str] = frozenset()
    start_at: str | None = None

    def includes(self, task: Task) -> bool:
        tags = task.tags
        return self._is_selected(tags) and not self._is_skipped(tags)

    def _is_selected(self, tags: frozenset[str]) -> bool:
        if tags & self.tags:
            return True
        if "never" in tags:
            return False
        if not self.tags or "all" in self.tags or "always" in tags:
            return True
        return ("tagged" in self.tags and bool(tags)) or ("untagged" in self.tags and not tags)

    def _is_skipped(self, tags: frozenset[str]) -> bool:
        if tags & self.skip_tags:
            return True
        return ("tagged" in self.skip_tags and bool(tags)) or ("untagged" in self.skip_tags and not tags)


def select_tasks(playbook: Playbook, choice: TaskSelection) -> frozenset[int]:
    """The selected tasks by id(): a file that is included twice has two sets of tasks."""
    tasks = [task for play in playbook.plays for task in play.tasks]
    first = 0
    if choice.start_at is not None:
        first = _first(tasks, choice.start_at)
    return frozenset(id(task) for task in tasks[first:] if choice.includes(task))


def unknown_tags(playbook: Playbook, choice: TaskSelection) -> list[tuple[str, str]]:
    """Requested tags that no task has, each with a suggestion."""
    known = {tag for play in playbook.plays for task in play.tasks for tag in task.tags}
    unknown = sorted((choice.tags | choice.skip_tags) - known - _SPECIAL)
    return [
        (tag, did_you_mean(tag, known, f"there are: {', '.join(sorted(known))}" if known else "")) for tag in unknown
    ]


def _first(tasks: list[Task], name: str) -> int:
    for matches in (lambda task: task.called == name, lambda task: fnmatchcase(task.called, name)):
        for index, task in enumerate(tasks):
            if matches(task):
                return index
    fix = did_you_mean(name, [task.called for task in tasks], "--list-tasks shows their names")
    raise UserError(f"--start-at: no task is called {quoted(name)}", fix=fix)
