"""Positions in a file, errors that point to them, and texts with templates that keep their position."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal

from ipexctl.errors import FileError
from ipexctl.hosts.names import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipexctl.hosts.source import SourceFile


_SHOWN: Final = 10


class PlaybookError(FileError):
    """`FILE:LINE:COLUMN: what`, the line, and a caret under the column."""

    def __init__(self, position: Position, what: str, *, fix: str = "") -> None:
        shown = position.source.error(position.line, position.column, what, fix=fix)
        super().__init__(shown.path, position.line, what, text=shown.text, column=shown.column, fix=fix)
        self.message = f"{position}: {what}"
        self.args = (self.message,)


def raise_first(errors: Sequence[FileError]) -> None:
    """Raise the first error, with the next ones attached up to a readable number."""
    if errors:
        errors[0].more = tuple(errors[1:_SHOWN])
        raise errors[0]


@dataclass(frozen=True, slots=True)
class Position:
    """Line and column, both counted from 1."""

    source: SourceFile
    line: int
    column: int

    def error(self, what: str, *, fix: str = "") -> PlaybookError:
        return PlaybookError(self, what, fix=fix)

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


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {quoted(near[0])}?" if near else otherwise


def templates_in(value: Value) -> list[Templated]:
    """All templates in a value."""
    if isinstance(value, Templated):
        return [value]
    if isinstance(value, dict):
        return [template for item in value.values() for template in templates_in(item)]
    if isinstance(value, list | tuple):
        return [template for item in value for template in templates_in(item)]
    return []
