"""Print messages on stderr: errors, hints and steps.

They are written straight to the descriptor, so a closed or blocked stderr costs the message but never stops the
command. No word is broken, and the command in a fix stays on one line, so that it can be copied.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TextIO

from ipexctl.errors import CommandLineError, FileError, UserError
from ipexctl.node.common.fix import FixCommand, parts_of
from ipexctl.text import AS_ASCII, printable, safe_lines

if TYPE_CHECKING:
    from ipexctl.remote.outcome import Notice


_WIDE: Final = 100
"""Columns for sentences on wider terminals."""
_UNBROKEN: Final = "\N{NO-BREAK SPACE}"


def wrap_text(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """Wrap a text without breaking words, so that they can be copied. `hanging`: indent of all lines but the first."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def wrap_lines(text: str, width: int, hanging: str) -> list[str]:
    """Wrap a text with line breaks. Each line after the first is indented by `hanging`."""
    first, *more = text.split("\n")
    return [
        *(wrap_text(first, width, "", hanging) or [""]),
        *(p for line in more for p in wrap_text(line, width, hanging)),
    ]


def wrap_names(text: str, width: int, indent: str, hanging: str) -> list[str]:
    """Wrap a list such as `node[1,3-9]` after commas."""
    lines = [indent]
    for name in re.split(r"(?<=,)", text):
        if len(lines[-1]) + len(name) <= width or lines[-1] in (indent, hanging):
            lines[-1] += name
        else:
            lines.append(hanging + name)
    return lines


def wrap_fix(fix: str, width: int, indent: str, hanging: str) -> list[str]:
    """Wrap a fix. A command that does not fit the rest of a line gets its own line, and is not broken."""
    completed = parts_of(_completed(fix))
    parts = (str(part).replace(" ", _UNBROKEN) if isinstance(part, FixCommand) else part for part in completed)
    return [line.replace(_UNBROKEN, " ") for line in wrap_text("".join(parts), width, indent, hanging)]


def fold_text(text: str, columns: int, indent: str = "") -> list[str]:
    """Wrap a text for `columns`; one line if `columns` is 0, for grep."""
    if not columns:
        return [indent + text]
    return wrap_text(text, min(columns, _WIDE), indent, indent + "  ") or [indent]


def fold_fix(fix: str, columns: int) -> list[str]:
    """Wrap a clause of a fix, as `fold_text` wraps a text."""
    return wrap_fix(fix, min(columns, _WIDE), "  ", "    ") if columns else ["  " + fix]


_LOCK = threading.Lock()
STOPPING = "stopping (press Ctrl-C again to leave without waiting for the end)"


_has_colors = True


def set_colors(*, on: bool) -> None:
    """Turn colors off for this process, as after --no-color, or on."""
    global _has_colors
    _has_colors = on


def are_colors_off() -> bool:
    """True if --no-color or a variable turns colors off."""
    return not _has_colors or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def wants_color(stream: TextIO) -> bool:
    """True if the stream is a terminal and colors are on. The text alone must say everything."""
    return not are_colors_off() and stream.isatty()


def paint(text: str, code: str, *, on: bool) -> str:
    """Return the text in a color. `code`: of ANSI, such as `31` for red."""
    return f"\x1b[{code}m{text}\x1b[0m" if on and code and text else text


def _as_it_is(line: str) -> str:
    """Return the line."""
    return line


_completed: Callable[[str], str] = _as_it_is
"""Gives the commands of a line the options that they need to find the runs of this call."""


def complete_lines(change: Callable[[str], str]) -> None:
    """From now on, `change` each line of this process before it is printed."""
    global _completed
    _completed = change


def print_message(*lines: str) -> None:
    """Write lines to stderr. If stderr is closed, only the message is lost."""
    text = safe_lines([*map(_completed, lines)], colors=wants_color(sys.stderr))
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError):  # stderr is not a file: a test captures it
        sys.stderr.write(text)
        return
    rest = memoryview(text.encode(sys.stderr.encoding, AS_ASCII))
    with _LOCK, contextlib.suppress(OSError):
        while rest:  # text stuck in Python's buffer would block the interpreter's exit
            rest = rest[os.write(descriptor, rest) :]


def write_to_terminal(*lines: str) -> None:
    """Write lines to stderr without blocking. For signal handlers, which may interrupt the holder of stderr's lock."""
    with contextlib.suppress(OSError, ValueError):
        blocking = os.get_blocking(2)
        os.set_blocking(2, False)
        try:
            os.write(2, safe_lines(lines, colors=False).encode())
        finally:
            os.set_blocking(2, blocking)


def ask(question: str) -> str:
    """Ask a question; return the typed line, or an empty text if stdin is closed."""
    sys.stderr.write(safe_lines([question], colors=False).replace("\n", " "))
    sys.stderr.flush()
    return sys.stdin.readline()


def notice_text(notice: Notice) -> str:
    """Return the text of a notice, with `warning:` in front if it is one."""
    return "warning: " + notice.text if notice.warning else notice.text


def print_with_fix(text: str, fix: str) -> None:
    """Print a text and a fix below it, wrapped on a terminal. An empty fix is left out."""
    width = _terminal_width()
    lines = wrap_lines(text, width, "    ") if width else [text]
    if fix:
        lines += wrap_fix(fix, width, "  ", "  ") if width else ["  " + fix]
    print_message(*lines)


def fit_lines(lines: Sequence[str]) -> Sequence[str]:
    """Wrap lines for the terminal; lines that begin with two blanks are fixes.

    Without a terminal, return them as they are.
    """
    width = _terminal_width()
    if not width:
        return lines
    fitting: list[str] = []
    for line in lines:
        is_fix = line.startswith("  ")
        fitting += wrap_fix(line, width, "", "    ") if is_fix else wrap_lines(line, width, "    ")
    return fitting


def print_paragraph(text: str) -> None:
    """Print a text, wrapped on a terminal."""
    print_with_fix(text, "")


def _terminal_width() -> int:
    """Return the width of the terminal on stderr; 0 without one."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # no terminal, or a test captures it
        return 0


def print_user_error(error: UserError) -> None:
    """Print a wrong call or file: the message, the line with a caret below the mistake, and the fix; then further
    mistakes.
    """
    label = paint("error:", "31", on=wants_color(sys.stderr))
    lines = [error.message if isinstance(error, FileError) else f"{label} {error.message}"]
    if isinstance(error, (CommandLineError, FileError)) and error.text:
        lines += excerpt(error.text, error.column)
    if error.fix:
        lines.append("  " + error.fix)
    print_message(*lines)
    for other in error.more if isinstance(error, FileError) else ():
        print_user_error(other)


def print_refusal(reason: str, fix: str = "") -> None:
    """Print why something was refused, and the fix."""
    label = paint("refused:", "31", on=wants_color(sys.stderr))
    print_with_fix(f"{label} {reason}", fix)


_EXCERPT_WIDTH: Final = 74
"""Characters of a line that an excerpt shows."""


def excerpt(text: str, column: int) -> list[str]:
    """Return the line and a caret under `column` (from 1). A long line is cut around the column; 0 puts no caret."""
    start = max(0, column - 1 - _EXCERPT_WIDTH // 2) if len(text) > _EXCERPT_WIDTH else 0
    piece = text[start : start + _EXCERPT_WIDTH]
    lines = [f"  {'...' if start else ''}{printable(piece)}"]
    if column:
        lines.append(" " * (2 + (3 if start else 0) + column - 1 - start) + "^")
    return lines
