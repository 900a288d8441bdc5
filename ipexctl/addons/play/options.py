"""Options of modules and values of keywords: their kinds, limits and defaults, and how values are converted.

They convert as in Ansible: `yes` is true, a number may be text, one value may stand for a list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from ipexctl.errors import UserError
from ipexctl.hosts.host import did_you_mean, quote
from ipexctl.text import is_variable_name

OMIT: Final = "\x00omit"
"""Value of `default(omit)`: the option counts as not given."""
_TRUE: Final = frozenset({"yes", "true", "on", "1", "y"})
_FALSE: Final = frozenset({"no", "false", "off", "0", "n"})


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a module."""

    kind: str = "str"
    """A key of `_KINDS`."""
    required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """A module. `where`: `host`: on each host; `control`: on the control machine; `all`: one call for all hosts."""

    name: str
    where: Literal["host", "control", "all"]
    options: Mapping[str, Option] = field(hash=False)
    free: str | None = None
    """The option whose value may be written alone: `sync: DIR`; None if there is none."""
    any_option: bool = False
    """True if any option name is allowed, as for set_fact."""
    one_of: tuple[str, ...] = ()
    """Options of which exactly one must be given."""
    becomes: bool = False
    """True if it supports `become`."""
    once: bool = False
    """True if it runs for the first host alone."""
    is_cluster_job: bool = False
    """True for one job on all hosts: refused if a host is missing, or if options differ between hosts."""
    check: Callable[[Mapping[str, Any]], str | None] | None = None
    """Returns why the given options can't be combined, or None."""

    def kind(self, name: str) -> str:
        """Return the kind of an option; `any` for a name that is not declared."""
        return self.options[name].kind if name in self.options else "any"


class BadOption(Exception):
    """Raised for a wrong value. The message continues a sentence that begins with the option's name."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


_DECLARED: Final = re.compile(r"([\w,]+)(?::(\w+))?(?:\{([\w|]+)\})?(!)?(?:=([^\s>]+))?(?:>=(\S+))?")


def declared(text: str) -> dict[str, Option]:
    """Return name → option of a text such as `path,dest:path! state{file|link} seconds:float=300>=0`.

    Each item has the name and its aliases, the kind, the choices, `!` if the option is required, the default and the
    minimum; all but the name may be left out.
    """
    options: dict[str, Option] = {}
    for declaration in text.split():
        match = _DECLARED.fullmatch(declaration)
        assert match is not None, declaration
        names, kind, choices, required, default, minimum = match.groups()
        name, *aliases = names.split(",")
        option = Option(kind or "str", bool(required), None, tuple(choices.split("|")) if choices else ())
        option = replace(option, minimum=None if minimum is None else float(minimum), aliases=tuple(aliases))
        options[name] = option if default is None else replace(option, default=convert_value(option, default))
    return options


def fill_options(spec: Spec, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a module: the given values, converted, and defaults. Raises a BadOption.

    A value `omit` counts as not given.
    """
    if spec.any_option:
        return dict(values)
    options: dict[str, Any] = {name: option.default for name, option in spec.options.items()}
    for name, value in values.items():
        if value == OMIT and spec.options[name].required:
            raise BadOption(f"{quote(name)} is required but was omitted")
        if value != OMIT:
            try:
                options[name] = convert_value(spec.options[name], value)
            except BadOption as bad:
                raise BadOption(f"{quote(name)} {bad.message}", bad.fix) from None
    if spec.check is not None and (problem := spec.check({name: options[name] for name in values})):
        raise BadOption(problem)
    return options


def fill_environment(layers: Sequence[object]) -> dict[str, str]:
    """Return the variables of `environment`. Raises a BadOption.

    `layers`: mappings with filled templates, of which later ones override earlier ones.
    """
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
            if text != OMIT:
                if "\0" in text:
                    raise BadOption(f"'environment': {name} contains a NUL character")
                variables[name] = text
    return variables


def convert_value(option: Option, value: Any) -> Any:
    """Return the value as the option's kind. Raises a BadOption for another kind, choice or range."""
    noun, convert = _KINDS[option.kind]
    try:
        result = convert(value)
    except TypeError:
        kinds = {list: "a list", dict: "a mapping", type(None): "nothing"}
        raise BadOption(f"must be {noun}, not {kinds.get(type(value)) or quote(str(value))}") from None
    if option.choices and result not in option.choices:
        choices = f"one of {', '.join(option.choices)}"
        raise BadOption(f"is {quote(str(result))}", did_you_mean(str(result), option.choices, choices))
    if option.minimum is not None and result is not None and result < option.minimum:
        raise BadOption(f"is {result}, less than {option.minimum:g}")
    if option.maximum is not None and result is not None and result > option.maximum:
        raise BadOption(f"is {result}, more than {option.maximum:.9g}")
    return result


# A converter raises a TypeError for a value of another kind.


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise TypeError
    if "\0" in (text := str(value)):
        raise BadOption("contains a NUL character")
    return text


def _path(value: Any) -> str:
    if not (text := _text(value)):
        raise BadOption("must be a path, but is empty")
    return text


def _env(value: Any) -> str:
    from ipexctl.stack.env.record import check_env_name  # imported late for a fast start

    try:
        return check_env_name(_text(value))
    except UserError as error:
        raise BadOption("must be the name of an environment", error.fix) from None


def _number(types: tuple[type, ...], pattern: str) -> Callable[[Any], Any]:
    def number(value: Any) -> Any:
        if type(value) in types or (isinstance(value, str) and re.fullmatch(pattern, value.strip())):
            return types[0](value)
        raise TypeError

    return number


def _bool(value: Any) -> bool:
    text = str(value).lower() if isinstance(value, str | int) else ""
    if text not in _TRUE | _FALSE:
        raise TypeError
    return text in _TRUE


def _list(value: Any) -> list[str]:
    return [_text(item) for item in value] if isinstance(value, list) else [_text(value)]


def _mode(value: Any) -> int:
    """Read the mode from the text as written, because YAML reads 644 and 0644 as two different numbers."""
    text = value if isinstance(value, str) else f"0{value:o}" if type(value) is int else ""
    if not re.fullmatch(r"(0o?)?[0-7]{3,4}", text):
        raise TypeError
    return int(text.removeprefix("0o"), 8)


def _command(value: Any) -> str | list[str]:
    if not value or (isinstance(value, str) and not value.strip()):
        raise TypeError
    return _list(value) if isinstance(value, list) else _text(value)


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value


_KINDS: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "str": ("a text", _text),
    "int": ("a whole number", _number((int,), r"[-+]?[0-9]{1,18}")),
    "float": ("a number", _number((float, int), r"[-+]?[0-9]{1,18}(\.[0-9]{1,18})?")),
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
"""Kind → its noun for messages, and its converter."""


def noun_of(option: Option) -> str:
    """Return what the option takes, for messages: `a path`."""
    return _KINDS[option.kind][0]
