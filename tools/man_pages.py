"""Writes the man pages `ipexctl.1` and one for each command to man/, from where a build takes them.

    python -m tools.man_pages

click's own help goes through a formatter that writes roff in place of lines, so a page has the panels, options and
defaults of `--help` and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from ipexctl.commands.app import app, commands, load_command

DIRECTORY = Path(__file__).parents[1] / "man"


class RoffFormatter(typer.Context.formatter_class):  # type: ignore[misc, valid-type]  # of typer's own click
    """Takes what click's formatter takes, and has roff as its value."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        del prefix
        self.write(f".SH SYNOPSIS\n.B {_roff(prog)}\n{_roff(args)}\n")

    def write_heading(self, heading: str) -> None:
        self.write(f".SH {_roff(heading.upper())}\n")

    def write_paragraph(self) -> None:
        """A section and a paragraph begin by themselves."""

    def write_text(self, text: str) -> None:
        paragraphs = [" ".join(lines.split()) for lines in re.split(r"\n\s*\n", text.replace("\b", ""))]
        self.write("\n.PP\n".join(_roff(paragraph) for paragraph in paragraphs) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        del col_max, col_spacing
        for term, text in rows:
            self.write(f".TP\n.B {_roff(term.strip())}\n{_roff(' '.join(text.split()))}\n")

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self.write_heading(name)
        yield


def _roff(text: str) -> str:
    """Text in which roff sees no command, and keeps hyphens as they are typed."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


def page(command: Any, name: str, text: str, more: Sequence[str] = ()) -> str:
    formatter = RoffFormatter()
    title = name.replace(" ", "-")
    formatter.write(f'.TH {title.upper()} 1 "" "ipexctl" "ipexctl"\n.SH NAME\n{_roff(title)} \\- {_roff(text)}\n')
    _write(formatter, command, name)
    for sub, found in sorted(getattr(command, "commands", {}).items()):
        _write(formatter, found, f"{name} {sub}")
    pages = ", ".join(f"\\fB{_roff(other)}\\fR(1)" for other in more)
    return f"{formatter.getvalue()}.SH SEE ALSO\n{pages}\n"


def _write(formatter: RoffFormatter, command: Any, name: str) -> None:
    context = command.context_class(command, info_name=name, help_option_names=["-h", "--help"])
    command.format_usage(context, formatter)
    formatter.write_heading("Description")
    command.format_help_text(context, formatter)
    command.format_options(context, formatter)
    if command.epilog:
        formatter.write_heading("Example")
        formatter.write_text(command.epilog.removeprefix("Example: "))


def pages() -> dict[str, str]:
    names = [f"ipexctl-{name}" for name in commands()]
    root = page(get_command(app), "ipexctl", "one PyTorch job on the machines you can ssh to", names)
    found = {
        f"ipexctl-{name}.1": page(load_command(name), f"ipexctl {name}", text.rstrip("."), ["ipexctl"])
        for name, text in commands().items()
    }
    return {"ipexctl.1": root, **found}


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in pages().items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
