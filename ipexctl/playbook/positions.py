"""Where in a file something stands, and errors that point there. Texts that are templates know their place."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal

from ipexctl.errors import FileError
from ipexctl.hosts.names import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipexctl.hosts.source import Source


_SHOWN: Final = 10


class PlaybookError(FileError):
    """`FILE:LINE:COLUMN: what`, the line, a caret under the place."""

    def __init__(self, place: Place, what: str, *, fix: str = "") -> None:
        shown = place.source.error(place.line, place.column, what, fix=fix)
        super().__init__(shown.path, place.line, what, text=shown.text, column=shown.column, fix=fix)
        self.message = f"{place}: {what}"
        self.args = (self.message,)


def raise_first(errors: Sequence[FileError]) -> None:
    """The others go with it, as many as can be read at once."""
    if errors:
        errors[0].more = tuple(errors[1:_SHOWN])
        raise errors[0]


@dataclass(frozen=True, slots=True)
class Place:
    """Counts are from 1."""

    source: Source
    line: int
    column: int

    def error(self, what: str, *, fix: str = "") -> PlaybookError:
        return PlaybookError(self, what, fix=fix)

    def __str__(self) -> str:
        return f"{self.source.path}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Templated:
    """A text of the playbook that Jinja turns into a value."""

    text: str
    place: Place
    body: int = 0
    """How many lines below its place the text itself begins: one, for `|` and `>`."""
    kind: Literal["text", "expr", "file"] = "text"
    """A text that is one `{{ … }}` becomes that value, an expression always does, a file never."""

    def spot(self, line: int | None, word: str | None) -> Place:
        """The place of a word in that line of it, as well as it can be told."""
        source, first = self.place.source, self.place.line
        number = min(first + self.body + max((line or 1) - 1, 0), max(len(source.lines), 1))
        column = self.place.column if number == first else 1
        if word and source.lines:
            for candidate in range(number, min(number + self.text.count("\n") + 1, len(source.lines)) + 1):
                begin = column - 1 if candidate == first else 0
                at = source.lines[candidate - 1].find(word, begin)
                if at >= 0:
                    return Place(source, candidate, at + 1)
        if number != first:
            text = source.lines[number - 1]
            column = len(text) - len(text.lstrip()) + 1
        return Place(source, number, column)


Value = Any
"""None, bool, int, float, str, Templated, or a list or dict of such."""


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {quoted(near[0])}?" if near else otherwise


def templates_in(value: Value) -> list[Templated]:
    """All that Jinja has to look at in a value."""
    if isinstance(value, Templated):
        return [value]
    if isinstance(value, dict):
        return [found for item in value.values() for found in templates_in(item)]
    if isinstance(value, list | tuple):
        return [found for item in value for found in templates_in(item)]
    return []
