"""Tables and paragraphs that fit the terminal, without colors where stdout is no terminal.

In come cells and texts, out go lines. The rules: a word is broken only in a cell that is narrower than it; a command in
a fix stays on one line, even on one that is too long, since a terminal's own line break is not copied with it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from ipexctl.text import printable
from ipexctl.ui.messages import paint, wants_color

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_GAP: Final = "  "
_NARROWEST: Final = 4
"""Characters of a column that is not narrowed any more."""
_CLAUSE: Final = re.compile(r" *for \w+ in .*?; done;?|(?:[^:;]|[:;](?! ))+[:;]?")
_COMMAND: Final = re.compile(
    r"(sudo|ipexctl|apt-get|conda|curl|dnf|echo|find|for|grep|hostnamectl|ip|mount|ps|setsebool|sysctl|yum|zypper) "
)
WIDTH_WITHOUT_TERMINAL: Final = 200
"""Columns of a table in a pipe: cells are not folded there, so that grep finds whole lines."""


def output_width(without_terminal: int) -> int:
    """Columns of stdout: COLUMNS if it is set, else those of the terminal."""
    columns = os.environ.get("COLUMNS", "")
    if sys.stdout.isatty() or (columns.isdecimal() and int(columns)):
        return shutil.get_terminal_size().columns
    return without_terminal


def wrapped(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """The text in lines, those after the first with the indent `hanging`; words are not broken, to be copied."""
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def wrapped_fix(fix: str, width: int, indent: str, hanging: str) -> list[str]:
    """A fix in lines. A command that does not fit the rest of a line has a line of its own, and stays whole."""
    lines: list[str] = []
    prose, margin = "", indent
    follows_colon = False
    for match in _CLAUSE.finditer(printable(fix).strip()):
        clause = match[0].strip()
        text = f"{prose} {clause}".strip()
        is_command = _COMMAND.match(clause) is not None and (follows_colon or ", " not in clause)
        follows_colon = clause.endswith(":")
        if not is_command or len(margin) + len(text) <= width:
            *full, last = wrapped(text, width, margin, hanging)
            lines += full
            prose, margin = last[len(hanging if full else margin) :], hanging if full else margin
        else:
            lines += [f"{margin}{prose}", f"{hanging}{clause}"] if prose else [f"{margin}{clause}"]
            prose, margin = "", hanging
    return [*lines, f"{margin}{prose}"] if prose else lines


def print_lines(lines: Iterable[str]) -> None:
    """Print the lines to stdout, before anything that is printed to stderr later."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def show_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    notes: Sequence[str] = (),
    no_color: bool = False,
) -> None:
    """Print the rows to stdout, below a bold heading and a rule; `notes` has a text for below each row, or none."""
    width = output_width(WIDTH_WITHOUT_TERMINAL)
    cells = [list(headings), *([printable(cell) for cell in row] for row in rows)]
    widths = column_widths(cells, width)
    has_color = wants_color(sys.stdout, no_color=no_color)
    lines = [paint(line, "1", on=has_color) for line in row_lines(cells[0], widths)]
    lines.append("─" * (sum(widths) + len(_GAP) * (len(widths) - 1)))
    for row, note in zip_longest(cells[1:], notes, fillvalue=""):
        lines += row_lines(row, widths)
        lines += wrapped(note, width, _GAP) if note else ()
    print_lines(lines)


def table_width(rows: Sequence[Sequence[str]]) -> int:
    """Columns that a table needs without folded cells."""
    return sum(max(map(len, column)) + len(_GAP) for column in zip(*rows, strict=True)) - len(_GAP)


def column_widths(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The width of each column; the widest ones are narrowed until a row fits."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


def row_lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """One row; cells that are too long continue on the next line."""
    cells = [_pieces(cell, width) for cell, width in zip(row, widths, strict=True)]
    for pieces in zip_longest(*cells, fillvalue=""):
        yield _GAP.join(piece.ljust(width) for piece, width in zip(pieces, widths, strict=True)).rstrip()


def _pieces(text: str, limit: int) -> list[str]:
    """The text in pieces of at most `limit` characters, split after commas or blanks if possible."""
    pieces = []
    while len(text) > limit:
        cut = max(text.rfind(",", 0, limit), text.rfind(" ", 0, limit)) + 1
        cut = cut if 2 * cut > limit else limit
        pieces.append(text[:cut].rstrip(" "))
        text = text[cut:].lstrip(" ")
    return [*pieces, text]
