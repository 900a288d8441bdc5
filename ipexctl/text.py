"""Make text safe for terminals and names safe for shells; format sizes, durations, counts and lists of words.

Text from hosts, files and ranks is not trusted: a terminal obeys escape sequences in it.
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
"""Symbol of our own → its ASCII."""


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks. An encoding error handler of Python."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_SIGNS.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in text), error.end


codecs.register_error(AS_ASCII, _in_ascii)


def is_ascii_locale(environ: Mapping[str, str]) -> bool:
    """True if the user chose the locale C. Python itself would then write UTF-8 and set LC_CTYPE."""
    of_characters = environ.get("LC_CTYPE", "").replace("C.UTF-8", "")
    return (environ.get("LC_ALL") or of_characters or environ.get("LANG", "")) in ("C", "POSIX")


def is_variable_name(text: str) -> bool:
    """True for a name that a variable of the environment can have in sh."""
    return _VARIABLE.fullmatch(text) is not None


def variable_in_sh(name: str) -> str:
    """Return the name.

    Raises a UserError for anything that is none: the last line of defence before a shell reads it.
    """
    if not is_variable_name(name):
        raise UserError(f"'{name[:60]}' can't be the name of a variable", fix="letters, digits and _")
    return name


def format_clock(at: float, pattern: str = "%H:%M:%S") -> str:
    """Format a time of a host in the time zone of the control machine; `?` if it is invalid."""
    try:
        return time.strftime(pattern, time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "?"


def rough_duration(seconds: float) -> str:
    """Format seconds as `0.4 s`, `45 s`, `12 min`, `3 h 5 min` or `2 d 4 h`."""
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
    """Return the text of messages and tables. Characters that a terminal would obey are replaced, except our own
    colors.

    A line break in a line continues it, indented: text from elsewhere never begins a line.
    """
    return "".join(_safe_line(str(line), colors=colors) + "\n" for line in lines)


def _safe_line(line: str, *, colors: bool) -> str:
    """Return one line for `safe_lines`."""
    if line.isprintable():
        return line
    first, *more = line.split("\n")
    line = "\n    ".join((first, *filter(None, map(str.strip, more))))
    parts = (_OWN_COLORS_AND_BREAKS if colors else _BREAKS).split(line)  # text and separators alternate
    parts[::2] = map(printable, parts[::2])
    return "".join(parts) + ("\x1b[0m" if any(part.startswith("\x1b") for part in parts[1::2]) else "")


def neutralise(text: str) -> str:
    """Remove everything that a terminal would obey, except colors, tabs and newlines. Colors end with the text."""
    if text.isprintable():
        return text
    text = _SEQUENCE.sub(lambda sequence: sequence[0] if _COLOR.fullmatch(sequence[0]) else "", text)
    parts = _COLORS_AND_LINES.split(text)  # text and separators alternate
    parts[::2] = map(printable, parts[::2])
    colors = [part for part in parts[1::2] if part.startswith("\x1b")]
    return "".join(parts) + ("\x1b[0m" if colors and colors[-1] not in ("\x1b[0m", "\x1b[m") else "")


def strip_colors(text: str) -> str:
    """Remove colors."""
    return _COLOR.sub("", text) if "\x1b" in text else text


def tilde_path(path: Path) -> str:
    """Return the path with `~` for the home directory."""
    home = os.path.expanduser("~")  # noqa: PTH111  # Path.expanduser raises without a home
    text = os.fspath(path)
    inside = home != "/" and (text == home or text.startswith(f"{home}/"))
    return f"~{text[len(home) :]}" if inside else text


def home_directory() -> Path:
    """Return the home directory; `/` if the account has none."""
    home = os.path.expanduser("~")  # noqa: PTH111  # Path.home raises without a home
    return Path(home if home.startswith("/") else "/")


def expand_tilde(path: Path | str) -> Path:
    """Expand `~` of this or another account. The path is unchanged if there is no such account."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser raises for an unknown account


def readable(size: float) -> str:
    """Format bytes as `3.7 GB`, `240 MB`, `80 kB` or `12 bytes`: in powers of 1000, with two or three digits."""
    for unit, step in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= step:
            decimals = 1 if size < (10 if unit == "MB" else 100) * step else 0
            return f"{size / step:.{decimals}f} {unit}"
    if size >= 1e3:
        return f"{size / 1e3:.0f} kB"
    return "1 byte" if size == 1 else f"{size:.0f} bytes"


def format_count(number: int, noun: str) -> str:
    """Format a number with its noun: `1 rank`, `1,200 ranks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def join_words(words: Sequence[str]) -> str:
    """Join words as `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def number_ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges: `0-2,8` for 0, 1, 2, 8, as the kernel prints a list of CPUs."""
    parts: list[str] = []
    start = 0
    for position, number in enumerate(numbers):
        if position + 1 == len(numbers) or numbers[position + 1] != number + 1:
            first = numbers[start]
            parts.append(f"{first}" if first == number else f"{first}-{number}")
            start = position + 1
    return ",".join(parts)


_MOST_LISTED: Final = 8
"""Entries of a list that a person reads."""


def short_list(listed: str) -> str:
    """Shorten a list of more than eight entries: `0,2,4,…,254`."""
    parts = listed.split(",")
    return listed if len(parts) <= _MOST_LISTED else f"{','.join(parts[:3])},…,{parts[-1]}"


def short_numbers(numbers: Iterable[int]) -> str:
    """Format numbers as ranges, and shorten the list."""
    return short_list(number_ranges(sorted(set(numbers))))


def differing_words(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return for each command line the options and other words that another one lacks, as `--lr 3`."""
    named = [_named_words(line) for line in lines]
    differing: list[str] = []
    for words in named:
        lacking = [word for name, word in words.items() if any(other.get(name) != word for other in named)]
        differing.append(" ".join(lacking))
    return differing


def _named_words(line: Sequence[str]) -> dict[str, str]:
    """Return options with their values by name; other words by position, or by name if they are NAME=VALUE."""
    words: dict[str, str] = {}
    option, position = "", 0
    for word in line:
        name, equals, _ = word.partition("=")
        if word.startswith("-") and not word[1:2].isdigit():
            words[name], option = word, "" if equals else name
        elif option:
            words[option], option = f"{option} {word}", ""
        else:
            position += 1
            words[name if equals else str(position)] = word
    return words
