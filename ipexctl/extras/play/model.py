"""The model of a playbook: plays, tasks and blocks, with unfilled templates. Frozen.

`read.py` builds it from files. Values keep their position in the file, for later errors. Including a file twice makes
two sets of tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ipexctl.extras.play.options import Spec
from ipexctl.extras.play.playbook_file import Position, Templated, Value


@dataclass(frozen=True, slots=True)
class Arg:
    value: Value
    position: Position


@dataclass(frozen=True, slots=True)
class InheritedKeywords:
    when: tuple[Templated, ...] = ()
    tags: tuple[str, ...] = ()
    vars: tuple[Mapping[str, Value], ...] = ()
    environment: tuple[Value, ...] = ()
    become: bool | None = None
    become_user: str | Templated | None = None
    no_log: bool | None = None
    ignore_errors: bool | Templated | None = None
    delegate_to: str | Templated | None = None
    run_once: bool | None = None
    check_mode: bool | None = None
    diff: bool | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    items: Value
    position: Position
    loop_var: str = "item"
    label: Templated | None = None
    index_var: str | None = None
    pause: float = 0.0
    is_flattened: bool = False
    """True for with_items: nested lists are flattened, as in Ansible."""


@dataclass(frozen=True, slots=True)
class Task:
    name: str | Templated
    spec: Spec
    args: Mapping[str, Arg]
    position: Position
    inherited: InheritedKeywords
    base: Path
    loop: Loop | None = None
    register: str | None = None
    until: tuple[Templated, ...] = ()
    retries: int | None = None
    """Without `until`, a failed task is retried until it succeeds."""
    delay: float = 5.0
    changed_when: tuple[Templated, ...] | bool | None = None
    failed_when: tuple[Templated, ...] | bool | None = None
    notify: tuple[tuple[str, Position], ...] = ()
    listen: tuple[str, ...] = ()
    file: Templated | None = None

    @property
    def called(self) -> str:
        return self.name if isinstance(self.name, str) else self.name.text

    @property
    def values(self) -> list[Value]:
        inherited, loop = self.inherited, self.loop
        values = [self.name, *(arg.value for arg in self.args.values()), self.until]
        values += [self.changed_when, self.failed_when, *((loop.items, loop.label) if loop else ())]
        values += [inherited.when, inherited.vars, inherited.environment]
        return [*values, inherited.become_user, inherited.ignore_errors, inherited.delegate_to, self.file]

    @property
    def tags(self) -> frozenset[str]:
        return frozenset(self.inherited.tags)


@dataclass(frozen=True, slots=True)
class Block:
    position: Position
    block: tuple[Step, ...]
    rescue: tuple[Step, ...] = ()
    always: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Flush:
    """`meta: flush_handlers`: run notified handlers now, not at the end of the play."""


Step = Task | Block | Flush


@dataclass(frozen=True, slots=True)
class Play:
    name: str
    position: Position
    hosts: str
    hosts_position: Position
    steps: tuple[Step, ...]
    handlers: tuple[Task, ...] = ()
    vars: Mapping[str, Value] = field(default_factory=dict, hash=False)
    file_vars: tuple[Mapping[str, Value], ...] = ()
    gather_facts: bool | None = None
    """None: gather facts only if a task uses them."""
    any_errors_fatal: bool = False
    serial: tuple[int | str, ...] = ()
    """Batch sizes, as counts or percentages. Empty: all hosts at once."""

    @property
    def tasks(self) -> Iterator[Task]:
        return (task for task, _ in parts_of(self.steps))

    @property
    def all_tasks(self) -> tuple[Task, ...]:
        return (*self.tasks, *self.handlers)


@dataclass(frozen=True, slots=True)
class Playbook:
    path: Path
    shown: str
    plays: tuple[Play, ...]

    @property
    def all_tasks(self) -> list[Task]:
        return [task for play in self.plays for task in play.all_tasks]


def parts_of(steps: tuple[Step, ...], part: str = "") -> Iterator[tuple[Task, str]]:
    """Each task with the part of its block: `rescue`, `always` or empty."""
    for step in steps:
        if isinstance(step, Task):
            yield step, part
        elif isinstance(step, Block):
            yield from parts_of(step.block, part)
            yield from parts_of(step.rescue, "rescue")
            yield from parts_of(step.always, "always")
