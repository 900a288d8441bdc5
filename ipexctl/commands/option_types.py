"""What the values of options are, from the annotations of a command. Its parameters convert their values here: typer's
own types differ between its versions, and since 0.29 they import pydantic, which takes as long as all else at a start.
"""

from __future__ import annotations

from functools import partial
from types import NoneType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from ipexctl.errors import UserError

_NOUNS: Final[dict[type, str]] = {int: "a whole number", float: "a number"}


class OptionType(NamedTuple):
    kind: type
    """Of one value, where the option takes several."""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    help: str = ""

    @classmethod
    def of(cls, annotation: Any, info: Any) -> OptionType:
        """`info`: what typer's functions Option and Argument return."""
        if get_origin(annotation) is Literal:
            return cls(str, get_args(annotation))
        if inner := [each for each in get_args(annotation) if each is not NoneType]:
            return cls.of(inner[0], info)
        return cls(annotation, (), info.min, info.max, info.help or "")

    def convert(self, value: Any) -> Any:
        """Raises a ValueError that says what is allowed."""
        if self.kind is bool:
            return value
        try:
            result = self.kind(value)
        except ValueError:
            raise ValueError(f"{_NOUNS[self.kind]}, not {value!r}") from None
        if self.choices and result not in self.choices:
            raise ValueError(f"one of {', '.join(self.choices)}, not {value!r}")
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
    return bool(param.multiple) or param.nargs != 1


def adopt(param: Any, option_type: OptionType) -> None:
    """Give a parameter of typer this type, and the same help in all versions."""
    param.option_type = option_type
    param.process_value = partial(_process, param)
    param.metavar = param.metavar or (f"<{'|'.join(option_type.choices)}>" if option_type.choices else None)
    if param.param_type_name == "argument":
        shown, is_required = param.metavar, param.required
        usage = shown if shown.startswith("[") else f"{{{shown}}}" if is_required else f"[{shown}]"
        param.get_usage_pieces = lambda _: [usage]
        param.get_help_record = lambda _: (shown, option_type.help + "  [required]" * is_required)


def _process(param: Any, ctx: Any, value: Any) -> Any:
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
