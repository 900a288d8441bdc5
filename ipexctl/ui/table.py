"""Tables for people, by rich: they fit the terminal, and lose their frame and colours where there is none."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from ipexctl.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH_WITHOUT_TERMINAL = 200
"""Piped tables aren't folded to 80 columns: they are for grep."""


def show_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, no_color: bool = False) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    if sys.stdout.isatty():
        Console(no_color=no_color or None, highlight=False).print(table)
        return
    page = io.StringIO()
    Console(file=page, width=WIDTH_WITHOUT_TERMINAL, highlight=False).print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in page.getvalue().splitlines()))
    sys.stdout.flush()
