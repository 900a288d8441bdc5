"""Errors of typer's parser in the words of ours, with the call that shows what is possible."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any, Final

from ipexctl.errors import UserError

_REFUSED: Final = re.compile(r"(?P<value>'.*'|\S+) is not (?:a valid (?P<kind>\w+)|in the range|one of)", re.S)
_KINDS: Final = {"int": "a whole number", "float": "a number", "boolean": "true or false"}


def user_error(error: Any, command: str) -> UserError:
    """`command` is the call's, for errors that do not know theirs."""
    path = error.ctx.command_path if error.ctx else command
    return UserError(_sentence(error), fix=f"list what is possible: {path} --help")


def _sentence(error: Any) -> str:
    kind, param = type(error).__name__, getattr(error, "param", None)
    is_option = getattr(param, "param_type_name", "") == "option"
    name = max(param.opts, key=len) if param and is_option else getattr(param, "human_readable_name", "")
    refused = _REFUSED.match(error.message)
    if kind == "NoSuchOption":
        near = get_close_matches(error.option_name, error.possibilities or (), n=1)
        return f"there is no option {error.option_name}" + (f"; did you mean {near[0]}?" if near else "")
    if kind == "MissingParameter":
        return f"{name} is missing"
    if kind == "BadOptionUsage":
        return f"{error.option_name} needs a value"
    if param is not None and refused:
        return f"{name} must be {_KINDS.get(refused['kind']) or _allowed(param.type)}, not {refused['value']}"
    extra = re.fullmatch(r"Got unexpected extra argument\S* \((.*)\)", error.message, re.S)
    return f"too many arguments: {extra[1]}" if extra else str(error.message).rstrip(".")


def _allowed(values: Any) -> str:
    if choices := getattr(values, "choices", ()):
        return f"one of {', '.join(map(str, choices))}"
    return f"{values.min} or more" if values.max is None else f"{values.min} to {values.max}"
