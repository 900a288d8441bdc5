"""Makes text safe for terminals and names safe for shells; formats sizes, durations, counts and lists of words. Text
from hosts, files and ranks is not trusted.
"""

from __future__ import annotations

import codecs
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ipexctl.errors import UserError

LOOK_AT_LINK: Final = (
    "look at the link's speed and errors{there} (ethtool IFACE, ip -s link), at the cable and the switch's port"
)


_COLOR: Final = re.compile(r"\x1b\[[0-9;:]*m")
_COLORS_AND_LINES: Final = re.compile(rf"({_COLOR.pattern}|[\n\t])")
_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|"  # CSI
    r"(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\n\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|"  # OSC, DCS, APC, PM, SOS
    r"\x1b[ -/]*[0-~]"
)

_BREAKS: Final = re.compile("(\n)")
_OWN_COLORS_AND_BREAKS: Final = re.compile(r"(\x1b\[(?:[0-2]|(?:1;)?3[1-6])m|\n)")
"""Colors of `ui/message_output.py: paint`: no text can hide itself with one of these."""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
AS_ASCII: Final = "ipexctl.ascii"
"""Name of an encoding error handler: symbols of our own become ASCII, any other character is escaped."""
_SIGNS: Final = {"─": "-", "│": "|", "…": "...", "→": "->", "µ": "u"}


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_SIGNS.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in text), error.end


codecs.register_error(AS_ASCII, _in_ascii)


def is_ascii_locale(environ: Mapping[str, str]) -> bool:
    """True if the user chose the locale C. Python itself would then write UTF-8 and set LC_CTYPE."""
    of_characters = environ.get("LC_CTYPE", "").replace("C.UTF-8", "")
    return (environ.get("LC_ALL") or of_characters or environ.get("LANG", "")) in ("C", "POSIX")


def is_variable_name(text: str) -> bool:
    return _VARIABLE.fullmatch(text) is not None


def variable_in_sh(name: str) -> str:
    """Raises a UserError for anything that is not a name: the last line of defence."""
    if not is_variable_name(name):
        raise UserError(f"'{name[:60]}' can't be the name of a variable", fix="letters, digits and _")
    return name


def format_clock(at: float, pattern: str = "%H:%M:%S") -> str:
    """Format a host's time in the control machine's time zone; `?` if it is invalid."""
    try:
        return time.strftime(pattern, time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "?"


def rough_duration(seconds: float) -> str:
    """`0.4 s`, `45 s`, `12 min`, `3 h 5 min`, `2 d 4 h`."""
    if seconds < 1:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def printable(text: str) -> str:
    """Replace each character that a terminal would obey rather than show."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else " " if c == "\t" or c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def safe_lines(lines: Iterable[str], *, colors: bool) -> str:
    """The text of messages and tables: characters that a terminal would obey are replaced, except our own colors. A
    line break in a line continues it, indented: text from elsewhere never begins a line.
    """
    return "".join(_safe_line(str(line), colors=colors) + "\n" for line in lines)


def _safe_line(line: str, *, colors: bool) -> str:
    if line.isprintable():
        return line
    first, *more = line.split("\n")
    line = "\n    ".join((first, *filter(None, map(str.strip, more))))
    parts = (_OWN_COLORS_AND_BREAKS if colors else _BREAKS).split(line)  # text and separators alternate
    parts[::2] = map(printable, parts[::2])
    return "".join(parts) + ("\x1b[0m" if any(part.startswith("\x1b") for part in parts[1::2]) else "")


def neutralise(text: str) -> str:
    """Remove all that a terminal would obey, except colors, tabs and newlines. Colors end with the text."""
    if text.isprintable():
        return text
    text = _SEQUENCE.sub(lambda sequence: sequence[0] if _COLOR.fullmatch(sequence[0]) else "", text)
    parts = _COLORS_AND_LINES.split(text)  # text and separators alternate
    parts[::2] = map(printable, parts[::2])
    colors = [part for part in parts[1::2] if part.startswith("\x1b")]
    return "".join(parts) + ("\x1b[0m" if colors and colors[-1] not in ("\x1b[0m", "\x1b[m") else "")


def strip_colors(text: str) -> str:
    return _COLOR.sub("", text) if "\x1b" in text else text


def tilde_path(path: Path) -> str:
    home = os.path.expanduser("~")  # noqa: PTH111  # Path.expanduser raises without a home
    text = os.fspath(path)
    inside = home != "/" and (text == home or text.startswith(f"{home}/"))
    return f"~{text[len(home) :]}" if inside else text


def home_directory() -> Path:
    home = os.path.expanduser("~")  # noqa: PTH111  # Path.home raises without a home
    return Path(home if home.startswith("/") else "/")


def expand_tilde(path: Path | str) -> Path:
    """Expand `~` of this or another account; unchanged if there is no such account."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser raises for an unknown account


def readable(size: float) -> str:
    """`3.7 GB`, `240 MB`, `80 kB`, `12 bytes`: in powers of 1000, two or three digits."""
    for unit, step in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= step:
            decimals = 1 if size < (10 if unit == "MB" else 100) * step else 0
            return f"{size / step:.{decimals}f} {unit}"
    if size >= 1e3:
        return f"{size / 1e3:.0f} kB"
    return "1 byte" if size == 1 else f"{size:.0f} bytes"


def format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def join_words(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def number_ranges(numbers: Sequence[int]) -> str:
    """`0-2,8` for the ascending numbers 0, 1, 2, 8, as the kernel prints a list of CPUs."""
    parts: list[str] = []
    start = 0
    for position, number in enumerate(numbers):
        if position + 1 == len(numbers) or numbers[position + 1] != number + 1:
            first = numbers[start]
            parts.append(f"{first}" if first == number else f"{first}-{number}")
            start = position + 1
    return ",".join(parts)


_MOST_LISTED: Final = 8


def short_list(listed: str) -> str:
    """`0,2,4,…,254` for a list with more than eight entries, which a person does not read."""
    parts = listed.split(",")
    return listed if len(parts) <= _MOST_LISTED else f"{','.join(parts[:3])},…,{parts[-1]}"


def short_numbers(numbers: Iterable[int]) -> str:
    return short_list(number_ranges(sorted(set(numbers))))


def differing_words(lines: Sequence[Sequence[str]]) -> list[str]:
    """Of each command line, the options and other words that another lacks: `--lr 3`."""
    named = [_named_words(line) for line in lines]
    return [" ".join(w for name, w in own.items() if any(each.get(name) != w for each in named)) for own in named]


def _named_words(line: Sequence[str]) -> dict[str, str]:
    """Options with their values by their names; other words by their place, or by their name if they are NAME=VALUE."""
    found: dict[str, str] = {}
    option, place = "", 0
    for word in line:
        name, equals, _ = word.partition("=")
        if word.startswith("-") and not word[1:2].isdigit():
            found[name], option = word, "" if equals else name
        elif option:
            found[option], option = f"{option} {word}", ""
        else:
            place += 1
            found[name if equals else str(place)] = word
    return found
