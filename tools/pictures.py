"""Pictures of a terminal for the pages: a command is called on a real one, and what it shows is drawn as SVG.

    python tools/pictures.py docs/pictures/doctor.svg --size 110x30 -- ipexctl doctor
    python tools/pictures.py docs/pictures/run.svg --at 'epoch 3/3' -- ipexctl run train_digits.py
    python tools/pictures.py docs/pictures/killed-rank.svg --speed 4 --size 100x28 --still 'its output' \\
        --then 'step 200/' "ipexctl exec -l node2 --shell 'pkill -KILL -f python.*[t]rain.py'" 'rank 1 is killed' \\
        --shown 'ipexctl run train.py' -- sh -c 'ipexctl run train.py; echo "$ ipexctl why last"; ipexctl why last'

Needs `pyte` of docs/requirements.txt beside our own packages. The picture has the last screen, or the screen once the
text of `--at` was shown; the program is stopped by Ctrl-C then. With `--speed`, the picture moves: it shows the whole
recording that many times as fast. It opens with the last screen that has the text of `--still`, which is all that is
shown where animation is off. `--then
TEXT COMMAND CAPTION` calls the command once the text is shown, after those named before it, and writes the caption
below the terminal.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import pyte
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from terminals import TerminalProgram

NAMES = {"brown": "yellow"}
"""pyte calls some colours otherwise than rich does."""
CELL, LINE, MARGIN = 8.43, 20, 14
"""The width of a character, the height of a line and the border of a moving picture, in pixels."""
FIRST_FRAME, LAST_FRAME = 2.5, 6.0
"""Seconds of the frame of `--still`, with which a moving picture opens, and of its end."""


class Terminal:
    """Both screens of a terminal: programs with a live view use the second one."""

    def __init__(self, width: int, height: int) -> None:
        self._screens = [pyte.Screen(width, height) for _ in range(2)]
        self._streams = [pyte.ByteStream(screen) for screen in self._screens]
        self._shown = 0

    def feed(self, data: bytes) -> None:
        for part in re.split(rb"(\x1b\[\?1049[hl])", data):
            if part.startswith(b"\x1b[?1049"):
                self._shown = int(part.endswith(b"h"))
                self._screens[1].reset()
            else:
                self._streams[self._shown].feed(part)

    @property
    def lines(self) -> list[Text]:
        return text_of(self._screens[self._shown])


@dataclass(frozen=True)
class Frame:
    second: float
    lines: Sequence[Text]
    caption: str


def record(argv: list[str], size: tuple[int, int], then: list[tuple[str, str, str]], wait: float) -> list[Frame]:
    """The screens of a program, four a second, until it ends."""
    shown = TerminalProgram(argv, variables(*size))
    shown.resize(*size)
    terminal, frames, fed, caption, waiting = Terminal(*size), list[Frame](), 0, "", then[:]
    others: list[subprocess.Popen[bytes]] = []
    began = time.monotonic()
    try:
        is_over = False
        while not is_over and time.monotonic() < began + wait:
            is_over = shown.process.poll() is not None
            shown.until(lambda: False, 0.25)
            terminal.feed(shown.seen[fed:])
            fed = len(shown.seen)
            lines = terminal.lines
            if waiting and any(waiting[0][0] in line.plain for line in lines):
                _, command, caption = waiting.pop(0)
                others.append(subprocess.Popen(command, shell=True, stdout=subprocess.DEVNULL))
            if not frames or (lines, caption) != (frames[-1].lines, frames[-1].caption):
                frames.append(Frame(time.monotonic() - began, lines, caption))
    finally:
        shown.close()
    failed = [other.args for other in others if other.wait() != 0]
    if failed or waiting:
        raise SystemExit(f"failed: {failed}; never shown: {waiting}")
    return frames


def animate(command: str, frames: Sequence[Frame], size: tuple[int, int], speed: float, still: str) -> str:
    """All frames one below the other, of which a window shows one at a time. Equal lines are in the picture once."""
    width, height = (round(2 * MARGIN + size[0] * CELL), 2 * MARGIN + (size[1] + 3) * LINE)
    rows: dict[str, int] = {}
    pages = []
    for number, frame in enumerate(frames):
        lines = [Text(f"$ {command}", "bold"), *frame.lines]
        lines += [Text()] * (size[1] + 2 - len(lines))
        lines.append(Text(frame.caption, "bold yellow"))
        drawn = [(at, row) for at, line in enumerate(lines) if (row := row_of(line))]
        uses = "".join(f'<use href="#r{rows.setdefault(row, len(rows))}" y="{at * LINE}"/>' for at, row in drawn)
        pages.append(f'<g transform="translate(0 {number * height})">{uses}</g>')
    shown = height * max(at for at, frame in enumerate(frames) if any(still in line.plain for line in frame.lines))
    starts = [FIRST_FRAME + frame.second / speed for frame in frames]
    length = starts[-1] + LAST_FRAME
    keys = "".join(
        f"{100 * start / length:.2f}%{{transform:translateY({-number * height}px)}}"
        for number, start in enumerate(starts)
    )
    last = (len(frames) - 1) * height
    definitions = "".join(f'<g id="r{number}">{row}</g>' for row, number in rows.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<style>svg{{fill:{_hex(None)}}}text{{font:14px monospace;white-space:pre}}"
        f"@keyframes play{{0%{{transform:translateY({-shown}px)}}{keys}100%{{transform:translateY({-last}px)}}}}"
        "@media (prefers-reduced-motion:no-preference)"
        f"{{#film{{animation:play {length:.1f}s step-end infinite}}}}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#0c0c0c"/>\n<defs>{definitions}</defs>\n'
        f'<svg x="{MARGIN}" y="{MARGIN}" width="{width - 2 * MARGIN}" height="{height - 2 * MARGIN}">\n'
        f'<g id="film" transform="translate(0 {-shown})">\n' + "\n".join(pages) + "\n</g>\n</svg>\n</svg>\n"
    )


def row_of(line: Text) -> str:
    """A line's runs of one style, each at its column, whatever the width of the reader's font."""
    parts, column = [], 0
    for run in line.divide(sorted({edge for span in line.spans for edge in (span.start, span.end)})):
        plain, style = run.plain, run.get_style_at_offset(Console(), 0) if run.plain else Style()
        fore, back = (style.bgcolor, style.color) if style.reverse else (style.color, style.bgcolor)
        x, width = f"{column * CELL:.0f}", f"{len(plain) * CELL:.0f}"
        if style.reverse or back:
            parts.append(f'<rect x="{x}" width="{width}" height="{LINE}" fill="{_hex(back)}"/>')
        if plain.strip():
            look = f' fill="{_hex(fore) if not style.reverse or fore else "#0c0c0c"}"' if fore or style.reverse else ""
            look += ' font-weight="bold"' if style.bold else ""
            parts.append(f'<text x="{x}" y="15" textLength="{width}"{look}>{escape(plain, quote=False)}</text>')
        column += len(plain)
    return "".join(parts)


def _hex(color: Color | None) -> str:
    return "#d9d9d9" if color is None else str(color.get_truecolor(MONOKAI).hex)


def variables(width: int, height: int) -> dict[str, str]:
    return {"COLUMNS": str(width), "LINES": str(height), "COLORTERM": "", "PYTHONPATH": ""}


def look(argv: list[str], width: int, height: int, at: str | None, wait: float, more: float) -> list[Text]:
    """The screen at the end of the program, or a while after that text has come."""
    shown = TerminalProgram(argv, variables(width, height))
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
    return text_of(screen)


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
    parser.add_argument("--speed", type=float, help="draw a moving picture, this many times as fast as the recording")
    parser.add_argument("--still", default="", help="text of the screen that is shown without animation")
    parser.add_argument("--then", nargs=3, action="append", default=[], metavar=("TEXT", "COMMAND", "CAPTION"))
    parser.add_argument("--more", type=float, default=1.0, help="seconds after that")
    parser.add_argument("--wait", type=float, default=300.0, help="seconds to wait at most")
    parser.add_argument("--shown", help="what the picture says was typed, where that is shorter")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    asked, argv = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    width, height = map(int, asked.size.split("x"))
    began = time.monotonic()
    command = asked.shown or shlex.join(argv)
    if asked.speed:
        frames = record(argv, (width, height), asked.then, asked.wait)
        picture, what = animate(command, frames, (width, height), asked.speed, asked.still), f"{len(frames)} frames"
    else:
        lines = look(argv, width, height, asked.at, asked.wait, asked.more)
        picture, what = draw(command, lines, width), f"{len(lines)} lines"
    asked.picture.parent.mkdir(parents=True, exist_ok=True)
    asked.picture.write_text(picture)
    print(f"{asked.picture}: {what} after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
