"""Splits a line into words and `key=value` pairs with their columns; a `#` ends the line."""

from __future__ import annotations

import re
from typing import NamedTuple

from ipexctl.hosts.names import WordError, describe

_GAP = re.compile(r"[ \t]*")
_QUOTING = re.compile(r"""["'\\]""")
_UNQUOTED = re.compile(r"[^ \t]+")
_PART = re.compile(r"""[^ \t"'#\\]+|"((?:[^"\\]|\\.)*)"|'([^']*)'|\\(.?)""", re.DOTALL)


# Special blanks (pasted from a web page), control characters and invisible marks.
_INVISIBLE = re.compile(
    r"[^\S \t]|[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\ud800-\udfff]"
)


class Word(NamedTuple):
    text: str
    column: int


class Pair(NamedTuple):
    key: str
    value: str
    column: int
    value_column: int


def split_words(line: str, *, escapes: bool = False) -> list[Word]:
    """The line's words without quotes. With `escapes` a backslash escapes the next character."""
    if _QUOTING.search(line) is None:
        plain = line.partition("#")[0]
        refuse_invisible(plain, len(plain))
        return [Word(match[0], match.start() + 1) for match in _UNQUOTED.finditer(plain)]
    words: list[Word] = []
    position = _end_of_gap(line, 0)
    while position < len(line) and line[position] != "#":
        text, end = _read_word(line, position, escapes)
        words.append(Word(text, position + 1))
        position = _end_of_gap(line, end)
    refuse_invisible(line, position)
    return words


def refuse_invisible(line: str, end: int) -> None:
    """Raise WordError for an invisible character before the comment."""
    match = _INVISIBLE.search(line, 0, end)
    if match is not None:
        fix = "type a plain blank instead" if match[0].isspace() else "delete that character"
        raise WordError(f"{describe(match[0])} can't stand here", column=match.start() + 1, fix=fix)


def split_pairs(words: list[Word]) -> tuple[list[Word], list[Pair]]:
    """Separate words and pairs. Open MPI allows blanks around the `=`, so `slots = 4` is one pair."""
    plain_words: list[Word] = []
    pairs: list[Pair] = []
    index = 0
    while index < len(words):
        text, column = words[index]
        index += 1
        if "=" not in text and index < len(words) and words[index].text.startswith("="):
            pairs_value, index = _value_after(words, index)
            pairs.append(Pair(text, pairs_value.text, column, pairs_value.column))
        elif "=" in text:
            key, _, value = text.partition("=")
            value_column = column + len(key) + 1
            if not value and index < len(words) and "=" not in words[index].text:
                value, value_column = words[index]
                index += 1
            pairs.append(Pair(key, value, column, value_column))
        else:
            plain_words.append(words[index - 1])
    return plain_words, pairs


def _value_after(words: list[Word], index: int) -> tuple[Word, int]:
    text, column = words[index]
    if len(text) > 1 or index + 1 == len(words):
        return Word(text[1:], column + 1), index + 1
    return words[index + 1], index + 2


def _end_of_gap(line: str, position: int) -> int:
    match = _GAP.match(line, position)
    return position if match is None else match.end()


def _read_word(line: str, position: int, escapes: bool) -> tuple[str, int]:
    parts: list[str] = []
    while position < len(line) and line[position] not in " \t#":
        match = _PART.match(line, position)
        if match is None:
            raise WordError("this quote is never closed", column=position + 1)
        double, single, escaped = match.groups()
        if double is not None:
            parts.append(re.sub(r'\\(["\\])', r"\1", double) if escapes else double)
        elif single is not None:
            parts.append(single)
        elif escaped is not None:
            parts.append(escaped if escapes else match[0])
        else:
            parts.append(match[0])
        position = match.end()
    return "".join(parts), position
