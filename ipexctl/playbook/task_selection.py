"""Selects the tasks of a playbook by tags and --start-at. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ipexctl.errors import UserError
from ipexctl.hosts.names import quoted
from ipexctl.playbook.positions import did_you_mean

if TYPE_CHECKING:
    from ipexctl.playbook.model import Playbook, Task

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
