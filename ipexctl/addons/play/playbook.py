"""Represent a playbook as it is read from its files: plays, blocks and tasks, with templates that are not filled yet.

Every node, template and task knows its position, so that each error can name file, line and column, also when a
template is filled much later. `read.py` makes these values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
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
    """A place in a file: line and column, counted from 1."""

    source: SourceFile
    line: int
    column: int

    def error(self, what: str, *, fix: str = "") -> FileError:
        """Return an error `FILE:LINE:COLUMN: what`, with the line and a caret under the column."""
        error = self.source.error(self.line, self.column, what, fix=fix)
        error.message = f"{self}: {what}"
        return error

    def __str__(self) -> str:
        return f"{self.source.path}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class TemplateText:
    """A text that may contain Jinja's `{{ … }}`, and is filled when a task runs."""

    text: str
    position: Position
    body: int = 0
    """Lines from `position` to the first line of the text: 1 for `|` and `>`."""
    kind: str = "text"
    """A `text` that is a single `{{ … }}` yields that value; an `expr` always yields a value, a `file` always text."""

    def spot(self, line: int | None, part: str | None) -> Position:
        """Return the position of a part of the text, at or after a line of the text; else that of the line.

        `line`: counted from 1; None for the first. `part`: None for a whole line.
        """
        source, first = self.position.source, self.position.line
        number = min(first + self.body + max((line or 1) - 1, 0), max(len(source.lines), 1))
        lines = source.lines[number - 1 : number + self.text.count("\n")] if part else []
        for candidate, text in enumerate(lines, number):
            index = text.find(part or "", self.position.column - 1 if candidate == first else 0)
            if index >= 0:
                return Position(source, candidate, index + 1)
        if number == first:
            return self.position
        return Position(source, number, len(source.lines[number - 1]) - len(source.lines[number - 1].lstrip()) + 1)


Value = Any
"""A value of YAML, in which a text with Jinja is a `TemplateText`."""
JINJA: Final = re.compile(r"\{\{|\{%|\{#")
_MAX_DIGITS: Final = 300
"""Python converts a long number slowly, and refuses a very long one."""


def templates_in(value: Value) -> list[TemplateText]:
    """Return all templates in a value, in their order; those in keys of mappings do not exist."""
    if isinstance(value, TemplateText):
        return [value]
    children: Iterable[Value] = ()
    if isinstance(value, Mapping):
        children = value.values()
    elif isinstance(value, list | tuple):
        children = value
    return list(chain.from_iterable(templates_in(child) for child in children))


class PlaybookFile(yaml_tree.YamlTree):
    """A file of a playbook: its YAML, and the errors that were found so far."""

    def __init__(self, text: str, path: str, base: Path, errors: list[FileError] | None = None) -> None:
        self.errors = [] if errors is None else errors
        """Shared by all files of one playbook."""
        super().__init__(text, path, base)

    def error_at(self, line: int, column: int, what: str, *, fix: str = "") -> FileError:
        """Return an error at this line and column, both counted from 1."""
        return Position(self.source, line, column).error(what, fix=fix)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Add an error of the block to `errors`, so that reading continues after it."""
        try:
            yield
        except FileError as error:
            self.errors.append(error)

    @property
    def top(self) -> Node | None:
        """Return the outermost node; None for an empty file."""
        return None if self.root is None else Node(self, self.root)


class Node(NamedTuple):
    """A YAML node and its file."""

    file: PlaybookFile
    yaml: yaml_tree.YamlNode

    @property
    def position(self) -> Position:
        """Return where the node begins in its file."""
        mark = self.yaml.start_mark
        return Position(self.file.source, mark.line + 1, mark.column + 1)

    @property
    def kind(self) -> str:
        """Return what the node is, for messages."""
        return yaml_tree.kind(self.yaml)

    @property
    def text(self) -> str:
        """Return a scalar as it is written, without quotes. It has no meaning for a mapping or a list."""
        return str(self.yaml.value)

    def is_a(self, kind: str) -> bool:
        """True if it is a `scalar` (and not null), `mapping` or `sequence`."""
        return self.yaml.id == kind and not self.is_null

    @property
    def is_null(self) -> bool:
        """True for an empty value, `null` or `~`."""
        return yaml_tree.is_null(self.yaml)

    def error(self, what: str, *, fix: str = "") -> FileError:
        """Return an error at this node. The caller raises it, or adds it with `report`."""
        return self.position.error(what, fix=fix)

    def report(self, what: str, *, fix: str = "") -> None:
        """Add an error at this node; reading continues."""
        self.file.errors.append(self.error(what, fix=fix))

    def entries(self, what: str, depth: int = 0) -> dict[str, Keyed]:
        """Return key → entry of a mapping. Raises a FileError for another node. `what`: how errors call the mapping."""
        entries = self.file.entries(self.yaml, what, depth)
        return {key: Keyed(key, Node(self.file, key_node), Node(self.file, value)) for key, key_node, value in entries}

    def items(self, depth: int = 0) -> list[Node]:
        """Return the items of a list, or the node itself."""
        if self.yaml.id != "sequence":
            return [self]
        return [Node(self.file, item) for item in self.file.items(self.yaml, depth)]

    def value(self, depth: int = 0) -> Value:
        """Return the value with YAML's conversions: numbers, booleans, lists, mappings; texts with Jinja are templates.

        `!unsafe` keeps a text as it is. Raises a FileError for any other tag of the user.
        """
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
        """Return a scalar as written, without YAML's conversions: `0644` stays text. None for null."""
        return None if self.is_null else self.template() if JINJA.search(self.text) else self.text

    def template(self, kind: str = "text") -> TemplateText:
        """Return the text as a template, whether it contains Jinja or not."""
        return TemplateText(self.text, self.position, int(getattr(self.yaml, "style", None) in ("|", ">")), kind)


class Keyed(NamedTuple):
    """An entry of a mapping."""

    key: str
    key_node: Node
    value: Node


def find_shipped_playbooks() -> dict[str, Path]:
    """Return name → path of the playbooks that ship with ipexctl, also in a clone."""
    packaged = Path(__file__).parents[2] / "playbooks"
    directory = packaged if packaged.is_dir() else Path(__file__).parents[3] / "playbooks"
    return {path.stem: path for path in sorted(directory.glob("*.yml"))}


def find_playbook(name: str, cwd: Path) -> tuple[Path, str]:
    """Return the path of a playbook, and its name for messages: a file, or else a playbook that ships with ipexctl.

    Raises a UserError if there is neither.
    """
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
    """Read a file of a playbook.

    `shown`: its name in messages; None for its path. `at`: the place in another file that names it; None for a file
    that the user named. `errors`: the list of the playbook. Raises a FileError at that place, else a UserError, if the
    file can't be read.
    """
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
    """Return why a file can't be read."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not a text file"


class Arg(NamedTuple):
    """The value of a module's option, and where it is written."""

    value: Value
    position: Position


@dataclass(frozen=True, slots=True)
class InheritedKeywords:
    """Keywords that a task gets from its play and blocks, too. None: not given."""

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
    """`loop` or `with_items` of a task, with its `loop_control`."""

    items: Value
    """A list, or a template that yields one."""
    position: Position
    loop_var: str = "item"
    label: TemplateText | None = None
    """What the output calls an item; None for the item itself."""
    index_var: str | None = None
    pause: float = 0.0
    """Seconds between two items."""
    is_flattened: bool = False
    """True for with_items: nested lists are flattened, as in Ansible."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task as written. Two equal tasks are told apart by their `id()`: an included file may be read twice."""

    name: str | TemplateText
    spec: Spec
    args: Mapping[str, Arg]
    """Name of an option → its value, unconverted."""
    position: Position
    inherited: InheritedKeywords
    base: Path
    """Directory of the file with the task, where relative paths begin."""
    loop: Loop | None = None
    register: str | None = None
    until: tuple[TemplateText, ...] = ()
    retries: int | None = None
    """Without `until`, a failed task is retried until it succeeds."""
    delay: float = 5.0
    """Seconds before a retry."""
    changed_when: tuple[TemplateText, ...] | bool | None = None
    failed_when: tuple[TemplateText, ...] | bool | None = None
    notify: tuple[tuple[str, Position], ...] = ()
    """Names of handlers."""
    listen: tuple[str, ...] = ()
    """Further names of a handler."""
    file: TemplateText | None = None
    """Content of the file of a template task; None for other tasks."""

    @property
    def called(self) -> str:
        """Return the name, with its templates unfilled."""
        return self.name if isinstance(self.name, str) else self.name.text

    @property
    def values(self) -> list[Value]:
        """Return all values that may have templates."""
        inherited, loop = self.inherited, self.loop
        values = [self.name, *(arg.value for arg in self.args.values()), self.until]
        values += [self.changed_when, self.failed_when, *((loop.items, loop.label) if loop else ())]
        values += [inherited.when, inherited.vars, inherited.environment]
        return [*values, inherited.become_user, inherited.ignore_errors, inherited.delegate_to, self.file]

    @property
    def tags(self) -> frozenset[str]:
        """Return the task's own tags and those of its play and blocks."""
        return frozenset(self.inherited.tags)


@dataclass(frozen=True, slots=True)
class Block:
    """Steps with `rescue`, for hosts that failed in `block`, and `always`, for all hosts that are reachable."""

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
    """A play as written."""

    name: str
    position: Position
    hosts: str
    """A pattern of hosts."""
    hosts_position: Position
    steps: tuple[Step, ...]
    """`pre_tasks`, `tasks` and `post_tasks`."""
    handlers: tuple[Task, ...] = ()
    vars: Mapping[str, Value] = field(default_factory=dict, hash=False)
    file_vars: tuple[Mapping[str, Value], ...] = ()
    """Variables of each of `vars_files`."""
    gather_facts: bool | None = None
    """None: gather facts only if a task uses them."""
    any_errors_fatal: bool = False
    serial: tuple[int | str, ...] = ()
    """Batch sizes, as counts or percentages. Empty: all hosts at once."""

    @property
    def tasks(self) -> Iterator[Task]:
        """Return all tasks of the steps, also those in blocks, in their order."""
        return (task for task, _ in parts_of(self.steps))

    @property
    def all_tasks(self) -> tuple[Task, ...]:
        """Return all tasks of the steps, also those in blocks, and then the handlers."""
        return (*self.tasks, *self.handlers)


@dataclass(frozen=True, slots=True)
class Playbook:
    """A playbook as written, with the files that it includes."""

    path: Path
    shown: str
    """Its name in messages."""
    plays: tuple[Play, ...]

    @property
    def all_tasks(self) -> list[Task]:
        """Return all tasks and handlers of all plays, in their order."""
        return list(chain.from_iterable(play.all_tasks for play in self.plays))

    @property
    def templates(self) -> list[TemplateText]:
        """Return all templates, each object once: tasks of a block share the templates that they inherit."""
        values = [(play.vars, play.file_vars, [task.values for task in play.all_tasks]) for play in self.plays]
        return list({id(template): template for template in templates_in(values)}.values())


def parts_of(steps: tuple[Step, ...], part: str = "") -> Iterator[tuple[Task, str]]:
    """Yield each task, also in blocks, with the part of its block: `rescue`, `always` or empty."""
    for step in steps:
        if isinstance(step, Task):
            yield step, part
        elif isinstance(step, Block):
            yield from parts_of(step.block, part)
            yield from parts_of(step.rescue, "rescue")
            yield from parts_of(step.always, "always")
