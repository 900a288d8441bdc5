"""Print tables that fit the terminal. A cell is broken only between names, and not at all in a pipe."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final

from ipexctl.hosts.nodeset import fold
from ipexctl.text import printable, safe_lines
from ipexctl.ui.message_output import paint, wants_color, wrap_lines, wrap_text
from ipexctl.ui.safe_output import print_document

_GAP: Final = "  "
_NARROWEST: Final = 4
"""Characters that the widest column keeps."""
_BREAK: Final = re.compile(r"(?<=,)| ")
"""Where a cell may be broken."""
_LONGEST_HOSTS: Final = 48
"""Characters of a list of hosts on a terminal."""
WIDTH_WITHOUT_TERMINAL: Final = 200
"""Width of a table in a pipe. No cell is broken, so that grep finds complete lines."""


def output_width(without_terminal: int) -> int:
    """Return the columns of stdout: COLUMNS if set, else the width of the terminal, else `without_terminal`."""
    columns = os.environ.get("COLUMNS", "")
    if sys.stdout.isatty() or (columns.isdecimal() and int(columns)):
        return shutil.get_terminal_size().columns
    return without_terminal


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to stdout, neutralised."""
    print_document(safe_lines(lines, colors=wants_color(sys.stdout)))


def print_sentence(text: str) -> None:
    """Print a text to stdout; on a terminal it is wrapped, and no word is cut."""
    print_lines(wrap_lines(text, output_width(0), "    ") if sys.stdout.isatty() else [text])


def show_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    notes: Sequence[str] = (),
) -> None:
    """Print a table. `notes`: a text below each row, or empty."""
    width = output_width(WIDTH_WITHOUT_TERMINAL)
    cells = [list(headings), *([printable(cell) for cell in row] for row in rows)]
    widths = column_widths(cells, width)
    has_color = wants_color(sys.stdout)
    lines = [paint(line, "1", on=has_color) for line in row_lines(cells[0], widths)]
    lines.append("─" * (sum(widths) + len(_GAP) * (len(widths) - 1)))
    for row, note in zip_longest(cells[1:], notes, fillvalue=""):
        lines += row_lines(row, widths)
        lines += wrap_text(note, width, _GAP) if note else ()
    print_lines(lines)


def fitting_layout(layouts: Sequence[Sequence[str]], rows: Sequence[Mapping[str, str]]) -> Sequence[str]:
    """Return the first layout in which no cell is broken, because a broken name cannot be copied; else the last
    layout.
    """
    if not (width := output_width(0)):
        return layouts[0]
    for layout in layouts:
        if table_width([layout, *([row[name] for name in layout] for row in rows)]) <= width:
            return layout
    return layouts[-1]


def cut_last_column(headings: Sequence[str], rows: Sequence[Sequence[str]], least: int) -> list[list[str]]:
    """Return the rows with shorter last cells, so that each row fits one line. At least `least` characters stay."""
    room = output_width(WIDTH_WITHOUT_TERMINAL) - table_width([row[:-1] for row in (headings, *rows)]) - len(_GAP)
    return [[*row[:-1], textwrap.shorten(row[-1], max(room, least), placeholder="…")] for row in rows]


def folded_hosts(names: Sequence[str]) -> str:
    """Fold names, as `node[1-4]`.

    On a terminal, return the number of hosts if there are many whose names do not fold.
    """
    text = fold(names)
    if not output_width(0) or len(text) <= _LONGEST_HOSTS or len(names) < 3:
        return text
    return f"{names[0]} and {len(names) - 1} others"


def table_width(rows: Sequence[Sequence[str]]) -> int:
    """Return the width of a table in which no cell is broken."""
    return sum(max(map(len, column)) + len(_GAP) for column in zip(*rows, strict=True)) - len(_GAP)


def column_widths(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the widths with which a row fits: the widest columns are narrowed, first those that break no word."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    longest = [max(len(word) for cell in column for word in _BREAK.split(cell)) for column in columns]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width and max(widths) > _NARROWEST:
        shrinkable = [number for number, size in enumerate(widths) if size > longest[number]]
        widths[max(shrinkable or range(len(widths)), key=widths.__getitem__)] -= 1
    return widths


def row_lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a row."""
    cells = [_pieces(cell, width) for cell, width in zip(row, widths, strict=True)]
    for pieces in zip_longest(*cells, fillvalue=""):
        yield _GAP.join(piece.ljust(width) for piece, width in zip(pieces, widths, strict=True)).rstrip()


def _pieces(text: str, limit: int) -> list[str]:
    """Return pieces of at most `limit` characters, split after commas or blanks. Only a longer word is broken."""
    pieces = []
    while len(text) > limit:
        cut = max(text.rfind(",", 0, limit), text.rfind(" ", 0, limit + 1)) + 1 or limit
        pieces.append(text[:cut].rstrip(" "))
        text = text[cut:].lstrip(" ")
    return [*pieces, text]
