"""Rewrites messages of commands for playbooks: `--option` becomes `option:`. Pure."""

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
    return replace(result, reason=_rephrased(result.reason, options), fix=_rephrased(result.fix, options))


def _rephrased(text: str, options: Container[str]) -> str:
    text = _COMMAND.sub(_as_task, text.replace(", or run --install", ""))
    return _FLAG.sub(lambda match: _as_option(match, options), text)


def _as_task(match: re.Match[str]) -> str:
    return f"a task {match[1]}:" + (f" {{env: {match[2]}}}" if match[2] else "")


def _as_option(match: re.Match[str], options: Container[str]) -> str:
    name = match[2].replace("-", "_")
    if name not in options:
        return match[0]
    return f"{name}: false" if match[1] else f"{name}:"
