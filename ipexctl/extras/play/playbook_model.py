"""A playbook as read from files, with unfilled templates, and the options of its modules. Frozen. Module options are
checked before anything runs, as far as their values are known, and convert as in Ansible: `yes` is true.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from ipexctl.errors import FileError, UserError
from ipexctl.extras.play.playbook_file import Position, TemplateText, Value, templates_in
from ipexctl.file_reader import COPIED, TooLargeError, open_regular
from ipexctl.hosts.host import did_you_mean, quote
from ipexctl.node.common.fix import Fix
from ipexctl.projects.root import path_problem
from ipexctl.text import expand_tilde, is_variable_name

OptionKind = Literal["str", "int", "float", "bool", "list", "dict", "mode", "command", "path", "env", "any", "exprs"]
Where = Literal["host", "control", "all"]
"""`host`: on each host; `control`: on the control machine; `all`: one call for all hosts of the play."""

TRUE: Final = frozenset({"yes", "true", "on", "1", "y"})
FALSE: Final = frozenset({"no", "false", "off", "0", "n"})
OMIT: Final = "\x00omit"
"""Value of `default(omit)`: the option counts as not given."""


@dataclass(frozen=True, slots=True)
class Option:
    kind: OptionKind
    required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    name: str
    where: Where
    options: Mapping[str, Option] = field(hash=False)
    free: str | None = None
    any_option: bool = False
    """Any option name is allowed, as for set_fact."""
    one_of: tuple[str, ...] = ()
    becomes: bool = False
    once: bool = False
    is_cluster_job: bool = False
    """One job on all hosts: refused if a host is missing or options differ between hosts."""
    check: Callable[[Mapping[str, Any]], str | None] | None = None

    def option(self, name: str) -> str | None:
        if name in self.options:
            return name
        return next((known for known, option in self.options.items() if name in option.aliases), None)


class BadOption(Exception):
    """The message continues a sentence that begins with the option's name."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def check_args(spec: Spec, called: str, args: Mapping[str, Arg], position: Position) -> Iterator[FileError]:
    for name, option in spec.options.items():
        if option.required and name not in args:
            yield position.error(f"{called} needs {quote(name)}, {_KINDS[option.kind][0]}")
    given = [name for name in spec.one_of if name in args]
    if spec.one_of and len(given) != 1:
        names = " or ".join(spec.one_of)
        yield (args[given[1]].position if given else position).error(f"{called} needs either {names}")
    known = {}
    for name, arg in args.items():
        if spec.any_option or templates_in(arg.value):
            continue
        try:
            known[name] = convert_value(spec.options[name], arg.value)
        except BadOption as bad:
            yield arg.position.error(f"{called}: {quote(name)} {bad.message}", fix=bad.fix)
    if spec.check is not None and len(known) == len(args) and (problem := spec.check(known)):
        yield position.error(f"{called}: {problem}")


def fill_options(spec: Spec, values: Mapping[str, Value]) -> dict[str, Any]:
    if spec.any_option:
        return dict(values)
    options: dict[str, Any] = {name: option.default for name, option in spec.options.items()}
    for name, value in values.items():
        if isinstance(value, str) and value == OMIT:
            if spec.options[name].required:
                raise BadOption(f"{quote(name)} is required but was omitted")
            continue
        try:
            options[name] = convert_value(spec.options[name], value)
        except BadOption as bad:
            raise BadOption(f"{quote(name)} {bad.message}", bad.fix) from None
    if spec.check is not None and (problem := spec.check({name: options[name] for name in values})):
        raise BadOption(problem)
    return options


def fill_environment(layers: Sequence[object]) -> dict[str, str]:
    """Variables of `environment` from filled templates; later mappings win. Raises BadOption."""
    variables: dict[str, str] = {}
    for layer in layers:
        if not isinstance(layer, dict):
            raise BadOption(f"'environment' is {quote(str(layer))}, which is not a mapping of variables")
        for key, value in layer.items():
            name, text = str(key), value if isinstance(value, str) else json.dumps(value)
            if not is_variable_name(name):
                raise BadOption(
                    f"'environment': {quote(name)} can't be a variable name", "a name has letters, digits and _"
                )
            if text == OMIT:
                continue
            if "\0" in text:
                raise BadOption(f"'environment': {name} contains a NUL character")
            variables[name] = text
    return variables


def convert_value(option: Option, value: Value) -> Any:
    result = _KINDS[option.kind][1](value)
    if option.choices and result not in option.choices:
        choices = f"one of {', '.join(option.choices)}"
        raise BadOption(f"is {quote(str(result))}", did_you_mean(str(result), option.choices, choices))
    if option.minimum is not None and result is not None and result < option.minimum:
        raise BadOption(f"is {result}, less than {option.minimum:g}")
    if option.maximum is not None and result is not None and result > option.maximum:
        raise BadOption(f"is {result}, more than {option.maximum:.9g}")
    return result


def _wrong(kind: OptionKind, value: Value) -> BadOption:
    shown = "nothing" if value is None else "a list" if isinstance(value, list) else "a mapping"
    shown = shown if value is None or isinstance(value, list | dict) else quote(str(value))
    return BadOption(f"must be {_KINDS[kind][0]}, not {shown}")


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        text = str(value)
        if "\0" in text:
            raise BadOption("contains a NUL character")
        return text
    raise _wrong("str", value)


def _path(value: Value) -> str:
    text = _text(value)
    if not text:
        raise BadOption("must be a path, but is empty")
    return text


def _env(value: Value) -> str:
    from ipexctl.stack.env.record import check_env_name  # imported late for a fast start

    try:
        return check_env_name(_text(value))
    except UserError as error:
        raise BadOption("must be the name of an environment", error.fix) from None


def _integer(value: Value) -> int:
    if type(value) is int or (isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]{1,18}", value.strip())):
        return int(value)
    raise _wrong("int", value)


def _float(value: Value) -> float:
    text = value.strip() if isinstance(value, str) else ""
    if type(value) in (int, float) or re.fullmatch(r"[-+]?[0-9]{1,18}(\.[0-9]{1,18})?", text):
        return float(value)
    raise _wrong("float", value)


def _bool(value: Value) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower() if isinstance(value, str | int) else ""
    if text in TRUE or text in FALSE:
        return text in TRUE
    raise _wrong("bool", value)


def _list(value: Value) -> list[str]:
    if isinstance(value, list):
        return [_text(item) for item in value]
    if isinstance(value, str | int | float):
        return [_text(value)]
    raise _wrong("list", value)


def _dict(value: Value) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise _wrong("dict", value)


def _mode(value: Value) -> int:
    """Read the mode from the text as written, because YAML reads 644 and 0644 as two different numbers."""
    text = value if isinstance(value, str) else f"0{value:o}" if type(value) is int else ""
    if re.fullmatch(r"(0o?)?[0-7]{3,4}", text):
        return int(text.removeprefix("0o"), 8)
    raise _wrong("mode", value)


def _command(value: Value) -> str | list[str]:
    if isinstance(value, list) and value:
        return [_text(item) for item in value]
    if isinstance(value, str | int | float) and str(value).strip():
        return _text(value)
    raise _wrong("command", value)


_KINDS: Final[Mapping[OptionKind, tuple[str, Callable[[Value], Any]]]] = {
    "str": ("a text", _text),
    "int": ("a whole number", _integer),
    "float": ("a number", _float),
    "bool": ("yes or no", _bool),
    "list": ("a list", _list),
    "dict": ("a mapping of `key: value` lines", _dict),
    "mode": ("a mode in octal, such as 0644", _mode),
    "command": ("a line for sh, or a list: a program and its words", _command),
    "path": ("a path", _path),
    "env": ("the name of an environment", _env),
    "any": ("a value", lambda value: value),
    "exprs": ("a condition, or a list of them", lambda value: value if isinstance(value, list) else [value]),
}


def local_path(base: Path, text: str) -> Path:
    return base / expand_tilde(text)


def source_path(module: str, base: Path, text: str) -> Path:
    """Path of `src`, searched like Ansible: in files/ or templates/ next to the playbook, then next to it."""
    inner = base / ("templates" if module == "template" else "files") / text
    return inner if not text.startswith(("/", "~")) and inner.exists() else local_path(base, text)


TOO_LARGE_FIX: Final = Fix(
    "`ipexctl push` sends it and resumes after an interruption; for a project directory use sync: {src: DIR}"
)


def check_copied(path: Path) -> None:
    """Raise OSError if copy can't send the file, TooLargeError if it is too large. Does not read it."""
    sizes: Iterable[int]
    if not path.is_dir():
        number = open_regular(path)
        try:
            sizes = [os.fstat(number).st_size]
        finally:
            os.close(number)
    else:
        files = (Path(directory, name) for directory, _, names in os.walk(path) for name in names)
        sizes = (file.stat().st_size for file in files if file.is_file())
    total = 0
    for size in sizes:
        total += size
        if total > COPIED.limit:
            raise TooLargeError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))


def script_argv(base: Path, line: str) -> list[str]:
    """Split `train.py --epochs 3` into script and arguments; an existing path with spaces is one word."""
    if not path_problem(local_path(base, line), "file"):
        return [line]
    try:
        return shlex.split(line) or [""]
    except ValueError:
        raise UserError("run: a quote is never closed", fix="argv: takes the script's words as a list") from None


@dataclass(frozen=True, slots=True)
class Arg:
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
