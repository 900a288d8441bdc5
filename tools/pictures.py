"""Pictures of a terminal for the pages: a command is called on a real one, and its last screen drawn as SVG.

    python tools/pictures.py docs/pictures/doctor.svg --size 110x30 -- ipexctl doctor
    python tools/pictures.py docs/pictures/run.svg --at 'epoch 3/3' -- ipexctl run train_digits.py

Needs `pyte` of docs/requirements.lock beside our own packages. What `--at` names is waited for, where the picture is to
be of a program that still runs; it is stopped by Ctrl-C then.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from terminals import TerminalProgram

NAMES = {"brown": "yellow"}
"""pyte calls some colours otherwise than rich does."""


def look(argv: list[str], width: int, height: int, at: str | None, wait: float, more: float) -> pyte.Screen:
    """The screen at the end of the program, or a while after that text has come."""
    shown = TerminalProgram(argv, {"COLUMNS": str(width), "LINES": str(height), "COLORTERM": "", "PYTHONPATH": ""})
    shown.resize(width, height)
    screen = pyte.Screen(width, height)
    stream = pyte.ByteStream(screen)
    try:
        if at is None:
            shown.until(lambda: shown.process.poll() is not None, wait)
            shown.until(lambda: False, 0.3)
        else:
            shown.until(lambda: at.encode() in shown.seen, wait)
            shown.until(lambda: False, more)
        stream.feed(shown.seen)
        if at is not None:
            shown.type(b"\x03")
            shown.until(lambda: shown.process.poll() is not None, 20)
    finally:
        shown.close()
    return screen


def text_of(screen: pyte.Screen) -> list[Text]:
    lines = []
    for number in range(screen.lines):
        line = Text()
        cells = [screen.buffer[number][column] for column in range(screen.columns)]
        for style, alike in groupby(cells, _style):
            line.append("".join(cell.data for cell in alike), style)
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def _style(cell: Any) -> Style:
    return Style(color=_colour(cell.fg), bgcolor=_colour(cell.bg), bold=cell.bold, reverse=cell.reverse)


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return NAMES.get(name, re.sub(r"^bright(?=[a-z])", "bright_", name))


def draw(command: str, lines: list[Text], width: int) -> str:
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(f"$ {command}", style="bold"))
    for line in lines:
        console.print(line, no_wrap=True, crop=True)
    svg = console.export_svg(title="", theme=MONOKAI, unique_id="t")
    # No font is fetched from anywhere: what the reader has will do.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.S).replace("Fira Code, monospace", "monospace")
    return re.sub(r"<!--.*?-->|\n\s+", lambda found: "" if found[0].startswith("<") else "\n", svg)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--size", default="110x32", help="columns x lines")
    parser.add_argument("--at", help="draw when this has been printed, and stop the program")
    parser.add_argument("--more", type=float, default=1.0, help="seconds after that")
    parser.add_argument("--wait", type=float, default=300.0, help="seconds to wait at most")
    parser.add_argument("--shown", help="what the picture says was typed, where that is shorter")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    asked, argv = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    width, height = map(int, asked.size.split("x"))
    began = time.monotonic()
    lines = text_of(look(argv, width, height, asked.at, asked.wait, asked.more))
    asked.picture.parent.mkdir(parents=True, exist_ok=True)
    asked.picture.write_text(draw(asked.shown or shlex.join(argv), lines, width))
    print(f"{asked.picture}: {len(lines)} lines after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
