"""What commands say in the words of a command line, in those of a playbook. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container

    from ipexctl.playbook.result import Result

_COMMAND: Final = re.compile(r"\bipexctl (install|trust)\b(?: --env ([^\s;,]+))?")
_FLAG: Final = re.compile(r"(?<![\w-])--(no-)?([a-z][a-z0-9-]*)")


def as_playbook(result: Result, options: Container[str]) -> Result:
    """`--python PATH` is `python: PATH` where the module has that option."""
    if not result.reason and not result.fix:
        return result
    return replace(result, reason=_said(result.reason, options), fix=_said(result.fix, options))


def _said(text: str, options: Container[str]) -> str:
    text = _COMMAND.sub(_task, text.replace(", or run --install", ""))
    return _FLAG.sub(lambda found: _option(found, options), text)


def _task(found: re.Match[str]) -> str:
    return f"a task {found[1]}:" + (f" {{env: {found[2]}}}" if found[2] else "")


def _option(found: re.Match[str], options: Container[str]) -> str:
    name = found[2].replace("-", "_")
    if name not in options:
        return found[0]
    return f"{name}: false" if found[1] else f"{name}:"
