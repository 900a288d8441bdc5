"""A playbook as it was understood: plays, tasks and blocks, every value still as it is written. Frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ipexctl.playbook.options import Spec
    from ipexctl.playbook.positions import Place, Templated, Value


@dataclass(frozen=True, slots=True)
class Arg:
    """One option of a module as it is written."""

    value: Value
    place: Place


@dataclass(frozen=True, slots=True)
class InheritedKeywords:
    """What a play or a block says for all the tasks in it, and a task for itself."""

    when: tuple[Templated, ...] = ()
    tags: frozenset[str] = frozenset()
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
    """`loop`, and what `loop_control` says of it."""

    items: Value
    place: Place
    var: str = "item"
    label: Templated | None = None
    index_var: str | None = None
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class Task:
    name: str | Templated
    spec: Spec
    args: Mapping[str, Arg]
    place: Place
    inherited: InheritedKeywords
    base: Path
    """The directory that relative paths of files here are from."""
    loop: Loop | None = None
    register: str | None = None
    until: tuple[Templated, ...] = ()
    retries: int = 3
    delay: float = 5.0
    changed_when: tuple[Templated, ...] | bool | None = None
    failed_when: tuple[Templated, ...] | bool | None = None
    notify: tuple[tuple[str, Place], ...] = ()
    listen: tuple[str, ...] = ()

    @property
    def called(self) -> str:
        """Its name before any template of it is filled."""
        return self.name if isinstance(self.name, str) else self.name.text

    @property
    def tags(self) -> frozenset[str]:
        return self.inherited.tags


@dataclass(frozen=True, slots=True)
class Block:
    name: str
    place: Place
    block: tuple[Step, ...]
    rescue: tuple[Step, ...] = ()
    always: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Flush:
    """`meta: flush_handlers`: what was notified runs here, not at the end."""


Step = Task | Block | Flush


@dataclass(frozen=True, slots=True)
class Play:
    name: str
    place: Place
    hosts: str
    hosts_place: Place
    steps: tuple[Step, ...]
    handlers: tuple[Task, ...] = ()
    vars: Mapping[str, Value] = field(default_factory=dict, hash=False)
    file_vars: tuple[Mapping[str, Value], ...] = ()
    gather_facts: bool | None = None
    """None: where something uses them."""
    any_errors_fatal: bool = False
    serial: tuple[int | str, ...] = ()
    """How many hosts at a time: numbers and percentages. None: all of them."""

    @property
    def tasks(self) -> Iterator[Task]:
        """In the order of the file, those of rescue and always too."""
        yield from tasks_of(self.steps)


@dataclass(frozen=True, slots=True)
class Playbook:
    path: Path
    shown: str
    """As the user named it."""
    plays: tuple[Play, ...]


def parts_of(steps: tuple[Step, ...], part: str = "") -> Iterator[tuple[Task, str]]:
    """Each with the part of a block it stands in, where that is `rescue` or `always`."""
    for step in steps:
        if isinstance(step, Task):
            yield step, part
        elif isinstance(step, Block):
            yield from parts_of(step.block, part)
            yield from parts_of(step.rescue, "rescue")
            yield from parts_of(step.always, "always")


def tasks_of(steps: tuple[Step, ...]) -> Iterator[Task]:
    return (task for task, _ in parts_of(steps))
