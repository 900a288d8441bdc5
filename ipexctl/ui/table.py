"""Tables that fit the terminal, without colors where stdout is no terminal."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from ipexctl.text import printable
from ipexctl.ui.messages import wants_color

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_GAP = "  "
WIDTH_WITHOUT_TERMINAL = 200
"""Columns of a table in a pipe: cells are not folded there, so that grep finds whole lines."""


def output_width(without_terminal: int) -> int:
    """Columns of stdout: COLUMNS if it is set, else those of the terminal."""
    columns = os.environ.get("COLUMNS", "")
    if sys.stdout.isatty() or (columns.isdecimal() and int(columns)):
        return shutil.get_terminal_size().columns
    return without_terminal


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, no_color: bool = False) -> None:
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    width = output_width(WIDTH_WITHOUT_TERMINAL)
    if sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        _show_folded(headings, cells, width, no_color=no_color)
        return
    bold, plain = ("\x1b[1m", "\x1b[0m") if wants_color(sys.stdout, os.environ, no_color=no_color) else ("", "")
    lines = [bold + _joined(headings, widths) + plain, "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))]
    lines += [_joined(row, widths) for row in cells]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _joined(row: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _show_folded(headings: Sequence[str], rows: Iterable[Sequence[str]], width: int, *, no_color: bool) -> None:
    """Print with rich, which wraps cells that are too wide for the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=width, no_color=no_color or None, highlight=False).print(table)
