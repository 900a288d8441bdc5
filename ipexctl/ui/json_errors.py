"""JSON documents for calls with `--json` that end before they have a result: reason and fix."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from ipexctl.errors import FileError, UserError
from ipexctl.text import printable
from ipexctl.ui.results import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence


def requested_schema(argv: Sequence[str]) -> str | None:
    """The schema of the command in `argv` if it has --json; arguments after a script belong to the script."""
    command: list[str] = []
    has_json = False
    for before, word in zip(("", *argv), argv, strict=False):
        if word == "--" or before in ("-m", "--module"):
            break
        has_json = has_json or word == "--json"
        if not word.startswith("-") and len(command) < 2:
            command.append(word)
        if word.endswith(".py"):
            break
    if not has_json or not command:
        return None
    return f"ipexctl.{'-'.join(command if command[0] == 'lab' else command[:1])}/1"


def print_json_error(reason: str, *, fix: str = "", status: str = "failed", error: UserError | None = None) -> None:
    """Print the document; nothing if the call has no --json."""
    schema = requested_schema(sys.argv[1:])
    if schema is None:
        return
    document: dict[str, Any] = {"schema": schema, "status": status}
    document |= {"reason": printable(reason), "fix": printable(fix)}
    if isinstance(error, FileError):
        document |= _position(error)
        if error.more:
            document["more"] = [
                {"reason": printable(other.message), "fix": printable(other.fix), **_position(other)}
                for other in error.more
            ]
    with contextlib.suppress(OSError):
        print_json(document)


def _position(error: FileError) -> dict[str, Any]:
    return {"file": printable(error.path), "line": error.line, "column": error.column}
