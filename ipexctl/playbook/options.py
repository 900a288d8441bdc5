"""What a module understands: its options with their types, checked before anything runs where their value is known."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ipexctl.hosts.names import quoted
from ipexctl.playbook.positions import Templated, did_you_mean, templates_in
from ipexctl.text import is_variable_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ipexctl.playbook.model import Arg
    from ipexctl.playbook.positions import Place, Value

Kind = Literal["str", "int", "float", "bool", "list", "dict", "mode", "command", "path", "local", "any", "exprs"]
Where = Literal["host", "here", "together"]
"""On each host by itself; on this machine, with no host touched; on all hosts of the play in one call."""

_NAMES: Final = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "yes or no",
    "list": "a list",
    "dict": "a mapping of `key: value` lines",
    "mode": "a mode in octal, such as 0644",
    "command": "a line for sh, or a list: a program and its words",
    "path": "a path",
    "local": "a path",
    "exprs": "a condition, or a list of them",
}
TRUE: Final = frozenset({"yes", "true", "on", "1", "y"})
FALSE: Final = frozenset({"no", "false", "off", "0", "n"})
OMIT: Final = "\x00omit"
"""What `default(omit)` comes to: as if the option weren't there."""


@dataclass(frozen=True, slots=True)
class Option:
    kind: Kind
    required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """A module, as the reader of playbooks knows it. What it does is imported when it runs."""

    name: str
    where: Where
    options: Mapping[str, Option] = field(hash=False)
    free: str | None = None
    """The option that a bare text or list is."""
    any_option: bool = False
    """Options are names of the user's own."""
    one_of: tuple[str, ...] = ()
    """Exactly one of these is needed."""
    becomes: bool = False
    """Whether it can do its work as root."""
    once: bool = False
    """Done once, and not for each host."""
    whole: bool = False
    """One job of all hosts of the play: without one of them, or with options of each its own, it is another."""
    check: Callable[[Mapping[str, Any]], str | None] | None = None
    """What is wrong with options that are well each by itself."""

    def option(self, name: str) -> str | None:
        if name in self.options:
            return name
        return next((known for known, option in self.options.items() if name in option.aliases), None)


class BadOption(Exception):
    """A value that isn't what the option takes; the sentence begins behind the option's name."""

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


def check_args(spec: Spec, called: str, args: Mapping[str, Arg], place: Place) -> None:
    """Refuse, with its place, what can be seen without a host. Templates are looked at when they are filled."""
    for name, option in spec.options.items():
        if option.required and name not in args:
            raise place.error(f"{called} needs {quoted(name)}, {_NAMES.get(option.kind, 'a value')}")
    if spec.one_of:
        given = [name for name in spec.one_of if name in args]
        if len(given) != 1:
            words = " or ".join(spec.one_of)
            raise (args[given[1]].place if given else place).error(f"{called} needs {words}: one of them")
    known = {}
    for name, arg in args.items():
        if spec.any_option or templates_in(arg.value):
            continue
        try:
            known[name] = converted(spec.options[name], arg.value)
        except BadOption as bad:
            raise arg.place.error(f"{called}: {quoted(name)} {bad.what}", fix=bad.fix) from None
    if spec.check is not None and len(known) == len(args) and (wrong := spec.check(known)):
        raise place.error(f"{called}: {wrong}")


def filled(spec: Spec, values: Mapping[str, Value]) -> dict[str, Any]:
    """All options, those of the playbook converted, the others at their defaults. Raises BadOption."""
    if spec.any_option:
        return dict(values)
    found: dict[str, Any] = {name: option.default for name, option in spec.options.items()}
    for name, value in values.items():
        if isinstance(value, str) and value == OMIT:
            if spec.options[name].required:
                raise BadOption(f"{quoted(name)} is needed, and was omitted")
            continue
        try:
            found[name] = converted(spec.options[name], value)
        except BadOption as bad:
            raise BadOption(f"{quoted(name)} {bad.what}", bad.fix) from None
    if spec.check is not None and (wrong := spec.check({name: found[name] for name in values})):
        raise BadOption(wrong)
    return found


def filled_environment(layers: Sequence[Any]) -> dict[str, str]:
    """The variables of `environment`, the later mappings over the earlier; a template made them. Raises BadOption."""
    found: dict[str, str] = {}
    for layer in layers:
        if not isinstance(layer, dict):
            raise BadOption(f"'environment' came to {quoted(str(layer))}, which is no mapping of variables")
        for key, value in layer.items():
            name, text = str(key), value if isinstance(value, str) else json.dumps(value)
            if not is_variable_name(name):
                raise BadOption(
                    f"'environment': {quoted(name)} can't be the name of a variable", "a name has letters, digits and _"
                )
            if text == OMIT:
                continue
            if "\0" in text:
                raise BadOption(f"'environment': {name} has a NUL character in it")
            found[name] = text
    return found


def converted(option: Option, value: Value) -> Any:
    """A value as the option takes it; raises BadOption."""
    result = _CONVERT[option.kind](value)
    if option.choices and result not in option.choices:
        raise BadOption(f"is {quoted(str(result))}", did_you_mean(str(result), option.choices, _one_of(option.choices)))
    if option.least is not None and result is not None and result < option.least:
        raise BadOption(f"is {result}, less than {option.least:g}")
    return result


def _one_of(choices: tuple[str, ...]) -> str:
    return f"one of {', '.join(choices)}"


def _wrong(kind: Kind, value: Value) -> BadOption:
    shown = "nothing" if value is None else "a list" if isinstance(value, list) else "a mapping"
    shown = shown if value is None or isinstance(value, list | dict) else quoted(str(value))
    return BadOption(f"must be {_NAMES[kind]}, not {shown}")


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        text = str(value)
        if "\0" in text:
            raise BadOption("has a NUL character in it")
        return text
    raise _wrong("str", value)


def _path(value: Value) -> str:
    text = _text(value)
    if not text:
        raise BadOption("must be a path, and is empty")
    return text


def _integer(value: Value) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]{1,18}", value.strip()):
        return int(value)
    raise _wrong("int", value)


def _float(value: Value) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]{1,18}(\.[0-9]{1,18})?", value.strip()):
        return float(value)
    raise _wrong("float", value)


def _bool(value: Value) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower() if isinstance(value, str | int) else ""
    if word in TRUE or word in FALSE:
        return word in TRUE
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
    """Read from the text as it is written: to YAML 644 and 0644 are two numbers, to everybody else one mode."""
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


def _exprs(value: Value) -> list[Any]:
    return value if isinstance(value, list) else [value]


_CONVERT: Final[Mapping[str, Callable[[Value], Any]]] = {
    "str": _text,
    "int": _integer,
    "float": _float,
    "bool": _bool,
    "list": _list,
    "dict": _dict,
    "mode": _mode,
    "command": _command,
    "path": _path,
    "local": _path,
    "any": lambda value: value,
    "exprs": _exprs,
}


def local_path(base: Path, text: str) -> Path:
    """A path of this machine, as a playbook says it: from the playbook's directory on."""
    return base / Path(text).expanduser()


def source_path(module: str, base: Path, text: str) -> Path:
    """As Ansible looks for `src`: in files/ or templates/ beside the playbook, and then beside it."""
    inner = base / ("templates" if module == "template" else "files") / text
    return inner if not text.startswith(("/", "~")) and inner.exists() else local_path(base, text)


def text_of_template(value: Value) -> str:
    return value.text if isinstance(value, Templated) else str(value)
