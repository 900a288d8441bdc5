"""The lines of a result in `ipexctl.toml`: the file with them, as text. Pure.

In come the text of the file, settings and a comment; out goes the new text, or a refusal. The rules: only `[run]` is
changed; the keys stand below its heading, and their old lines go; everything else stays as it is, byte for byte; the
new text is parsed, and it must have exactly these values and all others as before.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from ipexctl.extras.autotune.apply import options_of, variables_of
from ipexctl.refusal import Refusal
from ipexctl.user_config import TomlError, parse_toml

if TYPE_CHECKING:
    from ipexctl.extras.autotune.model import Settings

TABLE: Final = "run"
_NUMBER: Final = re.compile(r"[0-9]+")
_HEADING: Final = re.compile(r"\s*\[")
COMMENT: Final = "# ipexctl autotune"


def values_of(settings: Settings, exports: list[str]) -> dict[str, Any]:
    """The keys of `[run]`; `exports` are those that the file has."""
    values: dict[str, Any] = {
        name.replace("_", "-"): int(value) if _NUMBER.fullmatch(value) else value
        for name, value in options_of(settings).items()
    }
    variables = variables_of(settings)
    if variables:
        kept = [export for export in exports if export.partition("=")[0] not in variables]
        values["export"] = kept + [f"{name}={value}" for name, value in variables.items()]
    return values


def with_result(text: str, settings: Settings, comment: str) -> str | Refusal:
    """The text of the file with the settings, below a comment with date, gain and interval."""
    try:
        before = parse_toml(text)
    except TomlError as error:
        return Refusal(f"ipexctl.toml can't be read: {error}", "mend it, then type the call with --resume --save")
    of_run = before.get(TABLE, {})
    values = values_of(settings, list(of_run.get("export", [])))
    new = _edited(text, {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}, comment)
    try:
        after = parse_toml(new)
    except TomlError:
        after = {}
    if after != {**before, TABLE: {**of_run, **values}}:
        lines = "; ".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
        return Refusal("the lines could not be put into ipexctl.toml safely", f"write them below [run]: {lines}")
    return new


def _edited(text: str, values: dict[str, str], comment: str) -> str:
    lines = text.splitlines(keepends=True)
    start = next((at for at, line in enumerate(lines) if line.split("#")[0].strip() == f"[{TABLE}]"), None)
    added = [f"{COMMENT}, {comment}\n", *(f"{key} = {value}\n" for key, value in values.items())]
    if start is None:
        gap = [] if not lines else ["\n"] if lines[-1].endswith("\n") else ["\n\n"]
        return "".join([*lines, *gap, f"[{TABLE}]\n", *added])
    end = next((at for at in range(start + 1, len(lines)) if _HEADING.match(lines[at])), len(lines))
    if not lines[start].endswith("\n"):
        lines[start] += "\n"
    kept = [line for line in lines[start + 1 : end] if _key_of(line) not in values and not line.startswith(COMMENT)]
    return "".join([*lines[: start + 1], *added, *kept, *lines[end:]])


def _key_of(line: str) -> str:
    return line.partition("=")[0].strip().strip("\"'")
