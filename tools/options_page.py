"""Writes docs/options.md: every option of every command, from its declaration.

    python -m tools.options_page

As for the man pages, click's own help goes through a formatter: here, it collects rows. An option with the same row in
several commands is described once, at the end of the page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import typer

from ipexctl.commands.app import commands, load_command

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
HEAD = """\
# All options

Every option of every command, as `--help-all` prints them, made by `python -m tools.options_page`.
[Examples](commands.md) are on the pages of the commands.
"""
SHARED = "Options of several commands"
SEVERAL = 5
"""Commands that have the same row, from which on it is described once."""
_MARKS = re.compile(r"[\\`*_\[\]<>~$|]")

Row = tuple[str, str]


class Section(NamedTuple):
    command: str
    usage: str
    rows: list[Row]


class RowFormatter(typer.Context.formatter_class):  # type: ignore[misc, valid-type]  # of typer's own click
    """Takes what click's formatter takes, and collects its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.usage, self.rows = "", list[Row]()

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        del prefix
        self.usage = f"{prog} {args}"

    def write_dl(self, rows: Iterable[Row], col_max: int = 30, col_spacing: int = 2) -> None:
        del col_max, col_spacing
        self.rows += [(term.strip(), " ".join(text.split())) for term, text in rows]


def page() -> str:
    sections = [section for name in sorted(commands()) for section in _sections(load_command(name), f"ipexctl {name}")]
    counts = Counter(row for section in sections for row in section.rows)
    shared = {row: None for section in sections for row in section.rows if counts[row] >= SEVERAL}
    parts = [HEAD]
    for command, usage, rows in sections:
        own = "".join(map(_line, (row for row in rows if row not in shared)))
        others = ", ".join(f"`{re.split('[ ,]', term)[0]}`" for term, text in rows if (term, text) in shared)
        anchor = SHARED.lower().replace(" ", "-")
        parts.append(f"\n## {command}\n\n    {usage}\n\n{own}- [also](#{anchor}): {others}\n")
    return "".join([*parts, f"\n## {SHARED}\n\n", *map(_line, shared)])


def _line(row: Row) -> str:
    term, text = row
    return f"- `{term}`: {_MARKS.sub(lambda mark: chr(92) + mark[0], text)}\n"


def _sections(command: Any, name: str) -> Iterable[Section]:
    formatter = RowFormatter()
    context = command.context_class(command, info_name=name, help_option_names=["-h", "--help"])
    command.format_usage(context, formatter)
    command.format_options(context, formatter)
    yield Section(name, formatter.usage, formatter.rows)
    for sub, found in sorted(getattr(command, "commands", {}).items()):
        yield from _sections(found, f"{name} {sub}")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
