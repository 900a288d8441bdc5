"""What `--json` prints where a call ends before it has an answer: one document all the same, which says why."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from ipexctl.errors import FileError
from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.errors import UserError


def schema_asked_for(words: Sequence[str]) -> str | None:
    """The schema of the command these words call, if they ask for JSON; what is behind a script is the script's."""
    named: list[str] = []
    wanted = False
    for before, word in zip(("", *words), words, strict=False):
        if word == "--" or before in ("-m", "--module"):
            break
        wanted = wanted or word == "--json"
        if not word.startswith("-") and len(named) < 2:
            named.append(word)
        if word.endswith(".py"):
            break
    if not wanted or not named:
        return None
    return f"ipexctl.{'-'.join(named if named[0] == 'lab' else named[:1])}/1"


def print_json_error(reason: str, *, fix: str = "", status: str = "failed", error: UserError | None = None) -> None:
    """Nothing, where the call asks for no JSON."""
    schema = schema_asked_for(sys.argv[1:])
    if schema is None:
        return
    said: dict[str, Any] = {"schema": schema, "status": status}
    said |= {"reason": printable(reason), "fix": printable(fix)}
    if isinstance(error, FileError):
        said |= _place(error)
        if error.more:
            said["more"] = [
                {"reason": printable(each.message), "fix": printable(each.fix), **_place(each)} for each in error.more
            ]
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps(said, indent=2, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def _place(error: FileError) -> dict[str, Any]:
    return {"file": printable(error.path), "line": error.line, "column": error.column}


def show_wrong_call(error: UserError) -> None:
    print_json_error(error.message, fix=error.fix, error=error)
