"""Output of `ipexctl config`: the options of each command with value and source."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from ipexctl.text import printable
from ipexctl.ui.results import print_json
from ipexctl.ui.table import show_table

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCHEMA = "ipexctl.config/1"


class ConfigEntry(NamedTuple):
    command: str
    key: str
    value: object
    source: str
    line: int
    """0 if the source is no file."""
    table: str


def show(values: Sequence[ConfigEntry], *, quiet: bool, no_color: bool) -> None:
    """With --quiet only values that are not built-in."""
    rows = [
        (value.command, value.key, _text(value.value), f"{value.source}:{value.line}" if value.line else value.source)
        for value in values
        if not quiet or value.source != "built-in"
    ]
    show_table(("command", "option", "value", "from"), rows, no_color=no_color)


def as_json(values: Sequence[ConfigEntry], files: Sequence[str]) -> dict[str, Any]:
    commands: dict[str, dict[str, Any]] = {value.command: {} for value in values}
    for value in values:
        commands[value.command][value.key] = {
            "value": value.value,
            "source": printable(value.source),
            "line": value.line or None,
            "table": value.table or None,
        }
    return {"schema": _SCHEMA, "files": [printable(file) for file in files], "commands": commands}


def show_written(path: str, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json({"schema": _SCHEMA, "status": "changed", "path": path})
    elif not quiet:
        sys.stdout.write(f"{path} is written; `ipexctl config run` shows what holds for a run\n")


def _text(value: object) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
