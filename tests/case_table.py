"""Tables of cases, as text beside their tests: `test_x.py` has its rows in `x.txt`.

A section `[name]` has the rows of `test_name`: first the names of its arguments, then a case a line, with ` | `
between cells, or ` || ` where a cell contains a bar. A line that begins with `#` is a comment. The argument's
annotation decides how a cell is read: `str` as it stands, a tuple or list of texts as words, all else as a Python
literal. A text with line breaks, or with blanks at an end, is a literal in quotes. A column `case` is no argument but
the name of the case; without it, the row is.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])

_SECTION = re.compile(r"\[(\w+)\]")
_WORDS: dict[str, type] = {"tuple[str, ...]": tuple, "list[str]": list}
_QUOTES = ("'", '"')
_LITERAL = (*_QUOTES, "(", "[")


def case_table(test: Test) -> Test:
    """Parametrize a test with the section of its name; the text of a row is the id of its case."""
    section = test.__name__.removeprefix("test_")
    names, *rows = lines_of(inspect.getfile(test), section)
    bar = next((bar for bar in (" || ", " | ") if bar in names), "\n")
    arguments = _cells(names, bar)
    named = arguments[0] == "case"
    kinds = [str(inspect.signature(test).parameters[name].annotation) for name in arguments[named:]]
    cases = []
    for row in rows:
        try:
            cases.append(_case(_cells(row, bar), kinds))
        except (ValueError, SyntaxError) as error:
            table = Path(inspect.getfile(test)).stem.removeprefix("test_") + ".txt"
            raise ValueError(f"{table}, [{section}], {row!r}: {error}") from error
    marked: Test = pytest.mark.parametrize(",".join(arguments[named:]), cases)(test)
    return marked


def lines_of(test_file: str, section: str) -> list[str]:
    """The lines of a section of the text beside a test file, without comments."""
    path = Path(test_file)
    return sections_of(path.with_name(path.stem.removeprefix("test_") + ".txt"))[section]


def reader_of(table: Path) -> Path:
    """The test file that reads a table."""
    return table.with_name(f"test_{table.stem}.py")


def literals_of(test_file: str, section: str) -> tuple[Any, ...]:
    """The lines of a section, each a text as it stands, or a literal of Python in quotes."""
    return tuple(_value(line, "str") for line in lines_of(test_file, section))


@cache
def sections_of(path: Path) -> dict[str, list[str]]:
    """Section → its lines without comments."""
    return dict(_read(path.read_text(encoding="utf-8")))


def _cells(line: str, bar: str) -> list[str]:
    return [cell.strip() for cell in f"{line} ".split(bar)]


def _case(cells: list[str], kinds: list[str]) -> Any:
    name, values = (cells[0], cells[1:]) if len(cells) > len(kinds) else (" | ".join(cells), cells)
    return pytest.param(*(_value(cell, kind) for cell, kind in zip(values, kinds, strict=True)), id=name)


def _value(cell: str, kind: str) -> Any:
    if kind in _WORDS and cell[:1] not in _LITERAL:
        return _WORDS[kind](cell.split())
    if kind.startswith("str") and cell[:1] not in _QUOTES and (kind, cell) != ("str | None", "None"):
        return cell
    return ast.literal_eval(cell)


def _read(text: str) -> Iterator[tuple[str, list[str]]]:
    lines: list[str] = []
    for line in text.splitlines():
        if section := _SECTION.fullmatch(line):
            yield section[1], (lines := [])
        elif line.strip() and not line.startswith("#"):
            lines.append(line)
