"""The type of an option's value, taken from the annotation of a command's parameter.

Parameters convert their values here: typer's own types differ between its versions, and since 0.29 they import
pydantic, which takes as long as everything else at a start.
"""

from __future__ import annotations

import math
from functools import partial
from types import NoneType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from ipexctl.errors import UserError

_NOUNS: Final[dict[type, str]] = {int: "a whole number", float: "a number"}
"""Type → what a message calls its values."""


_MOST: Final = 1e9
"""Larger numbers are no seconds, nor anything else that an option counts."""


class OptionType(NamedTuple):
    """What values an option accepts."""

    kind: type
    """Type of a value; of one value if the option accepts several."""
    choices: tuple[str, ...] = ()
    """The allowed words; empty for any."""
    minimum: float | None = None
    """The smallest number; None for no limit."""
    maximum: float | None = None
    help: str = ""

    @classmethod
    def of(cls, annotation: Any, info: Any) -> OptionType:
        """Return the type for an annotation such as `int | None`.

        `info`: what typer's functions Option and Argument return.
        """
        if get_origin(annotation) is Literal:
            return cls(str, get_args(annotation))
        if members := [member for member in get_args(annotation) if member is not NoneType]:
            return cls.of(members[0], info)
        return cls(annotation, (), info.min, info.max, info.help or "")

    def convert(self, value: Any) -> Any:
        """Return the value in its type. Raises a ValueError that says what is allowed."""
        if self.kind is bool:
            return value
        try:
            result = self.kind(value)
            if self.kind is float and not math.isfinite(result):
                raise ValueError
        except ValueError:
            raise ValueError(f"{_NOUNS[self.kind]}, not {value!r}") from None
        if self.choices and result not in self.choices:
            raise ValueError(f"one of {', '.join(self.choices)}, not {value!r}")
        if self.kind is float and abs(result) > _MOST:
            raise ValueError(f"a number up to {_MOST:,.0f}, not {value!r}")
        low, high = self.minimum, self.maximum
        if (low is not None and result < low) or (high is not None and result > high):
            raise ValueError(f"{low} or more, not {result}" if high is None else f"{low} to {high}, not {result}")
        return result


class AdoptsOptions:
    """A command or group of typer whose options have types of ours; those that typer adds itself are flags."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._adopt(self.params)  # type: ignore[attr-defined]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with types of ours."""
        return self._adopt(super().get_params(ctx))  # type: ignore[misc]

    def _adopt(self, params: list[Any]) -> list[Any]:
        types = getattr(self.callback, "option_types", {})  # type: ignore[attr-defined]
        for param in params:
            if "--help" in param.opts:
                param.name = "help"  # click 8.5 has another name
            if not hasattr(param, "option_type"):
                adopt(param, types.get(param.name, OptionType(bool)))
        return params


def takes_several(param: Any) -> bool:
    """True if the parameter's value is a tuple."""
    return bool(param.multiple) or param.nargs != 1


def adopt(param: Any, option_type: OptionType) -> None:
    """Give a parameter of typer this type, and a help that is the same in all versions of typer."""
    param.option_type = option_type
    param.process_value = partial(_process, param)
    param.metavar = param.metavar or (f"<{'|'.join(option_type.choices)}>" if option_type.choices else None)
    if param.param_type_name == "argument":
        shown, is_required = param.metavar, param.required
        usage = shown if shown.startswith("[") else f"{{{shown}}}" if is_required else f"[{shown}]"
        param.get_usage_pieces = lambda _: [usage]
        param.get_help_record = lambda _: (shown, option_type.help + "  [required]" * is_required)


def _process(param: Any, ctx: Any, value: Any) -> Any:
    """Convert and check the value of a parameter. Raises a UserError."""
    is_option = param.param_type_name == "option"
    name, problem = max(param.opts, key=len) if is_option else param.metavar, ""
    if param.required and value in (None, (), []):
        problem = "is missing"
    convert = param.option_type.convert
    try:
        if takes_several(param):
            value = tuple(map(convert, value or ()))
        elif value is not None:
            value = convert(value)
    except ValueError as error:
        problem = f"must be {error}"
    if problem:
        raise UserError(f"{name} {problem}", fix=f"list what is possible: {ctx.command_path} --help")
    return param.callback(ctx, param, value) if param.callback else value
