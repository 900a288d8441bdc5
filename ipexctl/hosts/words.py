"""Split a line of a hostfile or inventory into words and `key=value` pairs, each with its column.

Invisible characters, pasted from web pages, are refused by name, because nobody could see them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from ipexctl.hosts.host import WordError, check_host, check_user, describe, quote, read_at
from ipexctl.hosts.nodeset import expand

Value = TypeVar("Value")
_GAP = re.compile(r"[ \t]*")
_QUOTE_OR_BACKSLASH = re.compile(r"""["'\\]""")
_UNQUOTED = re.compile(r"[^ \t]+")
_WORD_PART = re.compile(r"""[^ \t"'#\\]+|"((?:[^"\\]|\\.)*)"|'([^']*)'|\\(.?)""", re.DOTALL)


# Special blanks, control characters and invisible marks. Compiled only when a line may have one.
_INVISIBLE = r"[^\S \t]|[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\ud800-\udfff]"


class Word(NamedTuple):
    text: str
    column: int

    def read(self, parse: Callable[[str], Value]) -> Value:
        """Return what `parse` makes of the word. Its WordError gets the word's column."""
        return read_at(self.column, parse, self.text)

    def error(self, problem: str, fix: str = "") -> WordError:
        """Return an error at this word."""
        return WordError(problem, column=self.column, fix=fix)


class Pair(NamedTuple):
    key: Word
    value: Word


def split_words(line: str, *, escapes: bool = False) -> list[Word]:
    """Return the words of a line, without their quotes and without a comment. With `escapes`, a backslash escapes the
    next character. Raises a WordError."""
    if _QUOTE_OR_BACKSLASH.search(line) is None:
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
    """Raise a WordError for the first character before `end` that nobody sees in an editor."""
    match = None if line.isprintable() else re.search(_INVISIBLE, line[:end])
    if match is not None:
        fix = "type a plain blank instead" if match[0].isspace() else "delete that character"
        raise WordError(f"{describe(match[0])} is not allowed here", column=match.start() + 1, fix=fix)


def split_pairs(words: list[Word]) -> tuple[list[Word], list[Pair]]:
    """Return the words that are no pair, and the pairs. As in Open MPI, blanks may surround `=`, so `slots = 4` is one
    pair."""
    plain_words: list[Word] = []
    pairs: list[Pair] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if "=" not in word.text and index < len(words) and words[index].text.startswith("="):
            value, index = _value_after(words, index)
            pairs.append(Pair(word, value))
        elif "=" in word.text:
            key, _, rest = word.text.partition("=")
            value = Word(rest, word.column + len(key) + 1)
            if not rest and index < len(words) and "=" not in words[index].text:
                value = words[index]
                index += 1
            pairs.append(Pair(Word(key, word.column), value))
        else:
            plain_words.append(word)
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
    """Return the word that begins at the position, and the position behind it. Raises a WordError for a quote that is
    never closed."""
    parts: list[str] = []
    while position < len(line) and line[position] not in " \t#":
        match = _WORD_PART.match(line, position)
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


_BRACKETED_IPV6 = re.compile(r"\[([^\[\]]*:[^\[\]]*:[^\[\]]*)\](.*)", re.DOTALL)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_IN_NAME: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


class HostWord(NamedTuple):
    names: tuple[str, ...]
    user: str | None = None
    number: str = ""
    number_column: int = 1


def read_host_word(word: str, *, column: int = 1, names_of: Callable[[str], tuple[str, ...]] = expand) -> HostWord:
    """Return the parts of a word such as `user@node[1-4]:8`. Raises a WordError. `column`: where the word begins in the
    line. `names_of`: what expands a node set."""
    return read_at(column, lambda word: _parse_host_word(word, column, names_of), word)


def _parse_host_word(word: str, start_column: int, names_of: Callable[[str], tuple[str, ...]]) -> HostWord:
    """Return the parts of `read_host_word`."""
    scheme = _SCHEME.fullmatch(word)
    if scheme is not None:
        raise WordError("a host is expected here, not a URL", fix=_without_scheme(scheme[2]))
    user, at, host = word.rpartition("@")
    if at:
        if not host:
            raise WordError(f"no host follows {quote(word)}", column=len(word) + 1, fix=f"{word}node1")
        check_user(user)
    prefix_length = len(user) + len(at)
    names, number, column = read_at(prefix_length + 1, lambda host: _names_and_number(host, names_of), host)
    return HostWord(names, user if at else None, number, start_column + prefix_length + column - 1)


def read_address(word: str) -> str:
    """Return the address, without the brackets of IPv6. Raises a WordError."""
    match = _BRACKETED_IPV6.fullmatch(word)
    address = match[1] if match is not None and not match[2] else word
    check_host(address)
    return address


def _names_and_number(host: str, names_of: Callable[[str], tuple[str, ...]]) -> tuple[tuple[str, ...], str, int]:
    """Return the names, the number behind the colon, and the column at which the number begins. An IPv6 address has
    brackets if a number follows it."""
    bracketed = _BRACKETED_IPV6.fullmatch(host)
    if bracketed is not None and (names_of is expand or "::" in host or host.count(":") > 3):
        address, rest = bracketed.groups()
        read_at(2, check_host, address)
        return (address,), _text_after_colon(rest, len(address) + 2), len(address) + 4
    if "[" not in host and host.count(":") > 1:
        check_host(host)
        return (host,), "", len(host) + 1
    last_bracket = host.rfind("]")
    tail = host[last_bracket + 1 :]
    if "[" in tail:
        return _names(host, names_of), "", 1
    name, colon, number = tail.partition(":")
    name = host[: last_bracket + 1] + name
    column = len(name) + 2
    if colon and not number:
        raise WordError(
            f"there is no number after {quote(name + ':')}", column=column, fix=f"{name}, or {name}:4 for 4 slots"
        )
    return _names(name, names_of), number, column


def _names(name: str, names_of: Callable[[str], tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names of a node set, each a valid host name. Raises a WordError."""
    if "[" not in name and "]" not in name:
        if "," in name:
            raise _comma(name)
        check_host(name)
        return (name,)
    depth = 0
    for index, character in enumerate(name):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            raise _comma(name, index)
        if depth == 0 and character not in "[]" and character not in _IN_NAME:
            raise WordError(f"{describe(character)} is not allowed in a host name", column=index + 1)
    names = names_of(name)
    for expanded in names:
        check_host(expanded)
    return names


def _comma(name: str, index: int | None = None) -> WordError:
    """Return the error for a comma between hosts."""
    column = (name.index(",") if index is None else index) + 1
    return WordError(
        "hosts can't be separated by commas here: a line names one host or one node set",
        column=column,
        fix="put each host on its own line, or write node[1-4]",
    )


def _text_after_colon(rest: str, column: int) -> str:
    """Return what follows the colon behind an address in brackets; empty if nothing follows the address."""
    if not rest:
        return ""
    if rest[0] != ":" or len(rest) == 1:
        raise WordError("only :N can follow an address in brackets", column=column + 1, fix="such as [fe80::2]:4")
    return rest[1:]


def _without_scheme(rest: str) -> str:
    host, _, port = rest.rstrip("/").rpartition(":")
    if host and re.fullmatch(r"[0-9]{1,5}", port):
        return f"{host} port={port}"
    return "only user@host, with port=N after it if it isn't 22"
