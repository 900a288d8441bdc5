"""Positions in a file, errors that point to them, and texts with templates that keep their position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipexctl.errors import FileError
    from ipexctl.hosts.source import SourceFile


MAX_ERRORS: Final = 50
"""Most errors shown of one playbook."""


def raise_all(errors: Sequence[FileError], main: str = "") -> None:
    """Raise the first error with the others attached, in the order of the files; `main` is the first file."""
    if errors:
        first, *more = sorted(errors, key=lambda error: (error.path != main, error.path, error.line, error.column))
        first.more = tuple(more[: MAX_ERRORS - 1])
        raise first


@dataclass(frozen=True, slots=True)
class Position:
    """Line and column, both counted from 1."""

    source: SourceFile
    line: int
    column: int

    def error(self, what: str, *, fix: str = "") -> FileError:
        """`FILE:LINE:COLUMN: what`, the line, and a caret under the column."""
        error = self.source.error(self.line, self.column, what, fix=fix)
        error.message = f"{self}: {what}"
        return error

    def __str__(self) -> str:
        return f"{self.source.path}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Templated:
    """A text of the playbook that Jinja evaluates."""

    text: str
    position: Position
    body: int = 0
    """Lines between its position and the first line of the text: 1 for `|` and `>`."""
    kind: Literal["text", "expr", "file"] = "text"
    """A text that is a single `{{ … }}` yields that value; an expression always yields a value, a file always text."""

    def spot(self, line: int | None, word: str | None) -> Position:
        """The best known position of a word in a line of the text."""
        source, first = self.position.source, self.position.line
        number = min(first + self.body + max((line or 1) - 1, 0), max(len(source.lines), 1))
        column = self.position.column if number == first else 1
        if word and source.lines:
            for candidate in range(number, min(number + self.text.count("\n") + 1, len(source.lines)) + 1):
                start = column - 1 if candidate == first else 0
                index = source.lines[candidate - 1].find(word, start)
                if index >= 0:
                    return Position(source, candidate, index + 1)
        if number != first:
            text = source.lines[number - 1]
            column = len(text) - len(text.lstrip()) + 1
        return Position(source, number, column)


Value = Any
"""None, bool, int, float, str, Templated, or a list or dict of such."""


def templates_in(value: Value) -> list[Templated]:
    """All templates in a value."""
    if isinstance(value, Templated):
        return [value]
    if isinstance(value, dict):
        return [template for item in value.values() for template in templates_in(item)]
    if isinstance(value, list | tuple):
        return [template for item in value for template in templates_in(item)]
    return []
