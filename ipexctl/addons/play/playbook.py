"""A playbook as read from its files, with unfilled templates; every node, template and task knows its position. A name
without a path means a file in the current directory or, if there is none, a playbook that ships with ipexctl.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from ipexctl.addons.play.options import Spec
from ipexctl.errors import FileError, UserError
from ipexctl.file_reader import PLAYBOOK, decode_text, read_regular, read_typed
from ipexctl.hosts import yaml_tree
from ipexctl.hosts.host import did_you_mean, quote
from ipexctl.hosts.source import SourceFile
from ipexctl.text import expand_tilde


@dataclass(frozen=True, slots=True)
class Position:
    """Line and column, counted from 1."""

    source: SourceFile
    line: int
    column: int

    def error(self, what: str, *, fix: str = "") -> FileError:
        """`FILE:LINE:COLUMN: what`, the line, and a caret under the column."""
        error = self.source.error(self.line, self.column, what, fix=fix)
        error.message = f"{self}: {what}"
        return error

    def __str__(self) -> str:
        return f"{self.source.path}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class TemplateText:
    text: str
    position: Position
    body: int = 0
    """Lines from `position` to the first line of the text: 1 for `|` and `>`."""
    kind: str = "text"
    """A `text` that is a single `{{ … }}` yields that value; an `expr` always yields a value, a `file` always text."""

    def spot(self, line: int | None, word: str | None) -> Position:
        """Position of a word at or after a line of the text, else of that line."""
        source, first = self.position.source, self.position.line
        number = min(first + self.body + max((line or 1) - 1, 0), max(len(source.lines), 1))
        lines = source.lines[number - 1 : number + self.text.count("\n")] if word else []
        for candidate, text in enumerate(lines, number):
            index = text.find(word or "", self.position.column - 1 if candidate == first else 0)
            if index >= 0:
                return Position(source, candidate, index + 1)
        if number == first:
            return self.position
        return Position(source, number, len(source.lines[number - 1]) - len(source.lines[number - 1].lstrip()) + 1)


Value = Any
JINJA: Final = re.compile(r"\{\{|\{%|\{#")
_MAX_DIGITS: Final = 300


def templates_in(value: Value) -> list[TemplateText]:
    if isinstance(value, TemplateText):
        return [value]
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [template for child in children for template in templates_in(child)]


class PlaybookFile(yaml_tree.YamlTree):
    def __init__(self, text: str, path: str, base: Path, errors: list[FileError] | None = None) -> None:
        self.errors = [] if errors is None else errors
        """Shared by all files of one playbook."""
        super().__init__(text, path, base)

    def error_at(self, line: int, column: int, what: str, *, fix: str = "") -> FileError:
        return Position(self.source, line, column).error(what, fix=fix)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        try:
            yield
        except FileError as error:
            self.errors.append(error)

    @property
    def top(self) -> Node | None:
        return None if self.root is None else Node(self, self.root)


class Node(NamedTuple):
    """A YAML node and its file."""

    file: PlaybookFile
    yaml: yaml_tree.YamlNode

    @property
    def position(self) -> Position:
        mark = self.yaml.start_mark
        return Position(self.file.source, mark.line + 1, mark.column + 1)

    @property
    def kind(self) -> str:
        return yaml_tree.kind(self.yaml)

    @property
    def text(self) -> str:
        return str(self.yaml.value)

    def is_a(self, kind: str) -> bool:
        """Whether it is a `scalar` (and not null), `mapping` or `sequence`."""
        return self.yaml.id == kind and not self.is_null

    @property
    def is_null(self) -> bool:
        return yaml_tree.is_null(self.yaml)

    def error(self, what: str, *, fix: str = "") -> FileError:
        return self.position.error(what, fix=fix)

    def report(self, what: str, *, fix: str = "") -> None:
        self.file.errors.append(self.error(what, fix=fix))

    def entries(self, what: str, depth: int = 0) -> dict[str, Keyed]:
        entries = self.file.entries(self.yaml, what, depth)
        return {key: Keyed(key, Node(self.file, key_node), Node(self.file, value)) for key, key_node, value in entries}

    def items(self, depth: int = 0) -> list[Node]:
        """The items of a list, or the node itself."""
        if self.yaml.id != "sequence":
            return [self]
        return [Node(self.file, item) for item in self.file.items(self.yaml, depth)]

    def value(self, depth: int = 0) -> Value:
        if self.yaml.tag == "!unsafe" and self.yaml.id == "scalar":
            return self.text
        if self.yaml.tag.startswith("!"):
            fix = "use a value from the environment: \"{{ lookup('env', 'NAME') }}\""
            what = f"{quote(self.yaml.tag)} isn't understood here, at {self.kind[:60]}"
            raise self.error(what, fix=fix if self.yaml.tag == "!vault" else "")
        if self.yaml.id == "mapping":
            return {key: entry.value.value(depth + 1) for key, entry in self.entries("this", depth).items()}
        if self.yaml.id == "sequence":
            return [item.value(depth + 1) for item in self.items(depth)]
        name = self.yaml.tag.removeprefix("tag:yaml.org,2002:")
        if name not in ("bool", "int", "float") or ":" in self.text:  # YAML 1.1 reads 22:22 as a base-60 number
            return self.written()
        if len(self.text) > _MAX_DIGITS:
            raise self.error(f"a number of {len(self.text)} digits is too long", fix="write it in quotes")
        from yaml.constructor import SafeConstructor

        try:
            return getattr(SafeConstructor(), f"construct_yaml_{name}")(self.yaml)
        except (ValueError, KeyError, IndexError):  # `!!int ""`: PyYAML looks up words and first characters
            return self.text

    def written(self) -> str | TemplateText | None:
        """A scalar as written, without YAML's conversions."""
        return None if self.is_null else self.template() if JINJA.search(self.text) else self.text

    def template(self, kind: str = "text") -> TemplateText:
        return TemplateText(self.text, self.position, int(getattr(self.yaml, "style", None) in ("|", ">")), kind)


class Keyed(NamedTuple):
    key: str
    key_node: Node
    value: Node


def find_shipped_playbooks() -> dict[str, Path]:
    packaged = Path(__file__).parents[2] / "playbooks"
    directory = packaged if packaged.is_dir() else Path(__file__).parents[3] / "playbooks"
    return {path.stem: path for path in sorted(directory.glob("*.yml"))}


def find_playbook(name: str, cwd: Path) -> tuple[Path, str]:
    path, known = cwd / expand_tilde(name), find_shipped_playbooks()
    try:
        if path.is_file():
            return path, name
    except PermissionError as error:
        raise UserError(f"{quote(name)}: {error.strerror}", fix="name a playbook that you can read") from None
    if name in known:
        return known[name], f"{name}.yml"
    if path.is_dir():
        raise UserError(f"{quote(name)} is a directory", fix="name the playbook in it")
    files = [str(Path(name).with_name(file.name)) for file in sorted(path.parent.glob("*.y*ml"))]
    fix = did_you_mean(name, [*files, *known], f"name a file, or one that comes with ipexctl: {', '.join(known)}")
    raise UserError(f"there is no playbook {quote(name)}", fix=fix)


def read_file(
    path: Path, shown: str | None = None, *, at: Position | None = None, errors: list[FileError] | None = None
) -> PlaybookFile:
    """`at`: the place that names the file, in another one."""
    if shown is None:
        is_beside = at is not None and path.is_relative_to(at.source.base)
        shown = str(Path(at.source.path).parent / path.relative_to(at.source.base)) if at and is_beside else str(path)
    try:
        text = decode_text((read_typed if at is None else read_regular)(path, PLAYBOOK))
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error)
        if at is None:
            raise UserError(f"{shown}: {reason}") from None
        fix = "paths are relative to the directory of this file"
        raise at.error(f"{quote(shown)} can't be read: {reason}", fix=fix) from None
    return PlaybookFile(text, shown, path.parent, errors)


def reason_of(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not a text file"


class Arg(NamedTuple):
    value: Value
    position: Position


@dataclass(frozen=True, slots=True)
class InheritedKeywords:
    when: tuple[TemplateText, ...] = ()
    tags: tuple[str, ...] = ()
    vars: tuple[Mapping[str, Value], ...] = ()
    environment: tuple[Value, ...] = ()
    become: bool | None = None
    become_user: str | TemplateText | None = None
    no_log: bool | None = None
    ignore_errors: bool | TemplateText | None = None
    delegate_to: str | TemplateText | None = None
    run_once: bool | None = None
    check_mode: bool | None = None
    diff: bool | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    items: Value
    position: Position
    loop_var: str = "item"
    label: TemplateText | None = None
    index_var: str | None = None
    pause: float = 0.0
    is_flattened: bool = False
    """True for with_items: nested lists are flattened, as in Ansible."""


@dataclass(frozen=True, slots=True)
class Task:
    name: str | TemplateText
    spec: Spec
    args: Mapping[str, Arg]
    position: Position
    inherited: InheritedKeywords
    base: Path
    loop: Loop | None = None
    register: str | None = None
    until: tuple[TemplateText, ...] = ()
    retries: int | None = None
    """Without `until`, a failed task is retried until it succeeds."""
    delay: float = 5.0
    changed_when: tuple[TemplateText, ...] | bool | None = None
    failed_when: tuple[TemplateText, ...] | bool | None = None
    notify: tuple[tuple[str, Position], ...] = ()
    listen: tuple[str, ...] = ()
    file: TemplateText | None = None

    @property
    def called(self) -> str:
        return self.name if isinstance(self.name, str) else self.name.text

    @property
    def values(self) -> list[Value]:
        """All values that may have templates."""
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

    @property
    def templates(self) -> list[TemplateText]:
        values = [(play.vars, play.file_vars, [task.values for task in play.all_tasks]) for play in self.plays]
        return list({id(template): template for template in templates_in(values)}.values())


def parts_of(steps: tuple[Step, ...], part: str = "") -> Iterator[tuple[Task, str]]:
    """Each task with the part of its block: `rescue`, `always` or empty."""
    for step in steps:
        if isinstance(step, Task):
            yield step, part
        elif isinstance(step, Block):
            yield from parts_of(step.block, part)
            yield from parts_of(step.rescue, "rescue")
            yield from parts_of(step.always, "always")
