"""Expand node sets such as `node[1-4,7]` to names in order, and fold names to a node set.

Padding is kept (`n[01-10]`). A line has at most 100,000 hosts, because `node[1-999999999]` is a slip and must not fill
the memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from string import ascii_letters
from typing import Final

from ipexctl.hosts.host import WordError, quote, read_at

ReadBracket = Callable[[str], Sequence[str]]


MAX_HOSTS: Final = 100_000
_MAX_DIGITS: Final = 18

_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?:/([0-9]+))?)?")
_ANSIBLE_RANGE = re.compile(r"([0-9]*|[A-Za-z]):([0-9]+|[A-Za-z])(?::([0-9]+))?")
_FOLDABLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def expand(text: str) -> tuple[str, ...]:
    """Return the names in order, with repeats: `n[3,1],m` is n3, n1, m. Raises a WordError."""
    if "," not in text and text and not text[0].isspace() and not text[-1].isspace():
        return tuple(_expand(text, _numbers))
    names: list[str] = []
    for column, part in _split_parts(text):
        names.extend(read_at(column, lambda part: _expand(part, _numbers), part))
        _check_count(len(names), column)
    return tuple(names)


def expand_ranges(text: str) -> tuple[str, ...]:
    """Return the names of one node set, which may also have Ansible's `node[01:10:2]` and `node[a:c]`. Raises a
    WordError."""
    return tuple(_expand(text, _ansible_range))


def split_specs(text: str) -> tuple[str, ...]:
    """Return the parts of a list such as `n[1,3],m`, whose commas in brackets separate nothing."""
    return tuple(part for _, part in _split_parts(text))


def fold(names: Iterable[str]) -> str:
    """Return the names as one text, such as `node[1-4],login`: each once, numbered ones folded."""
    unique = dict.fromkeys(names)
    foldable = [name for name in unique if _FOLDABLE.fullmatch(name)]
    others = [name for name in unique if not _FOLDABLE.fullmatch(name)]
    if len(foldable) > 1:
        foldable = [_node_set(tuple(foldable))]
    return ",".join(foldable + others)


@lru_cache(maxsize=64)
def _node_set(names: tuple[str, ...]) -> str:
    """Return the names folded. Cached, because most findings and results are about the same hosts."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))


def _split_parts(text: str) -> Iterator[tuple[int, str]]:
    """Yield each part of a list, with its column. Commas in brackets separate nothing."""
    depth = start = 0
    for index, character in enumerate(text + ","):
        if character == "[":
            depth += 1
        elif character == "]":
            depth = max(0, depth - 1)
        elif character == "," and (depth == 0 or index == len(text)):
            raw = text[start:index]
            part = raw.strip()
            if part:
                yield start + 1 + len(raw) - len(raw.lstrip()), part
            start = index + 1


def _expand(text: str, numbers_of: ReadBracket) -> Sequence[str]:
    """Return all names of one node set; `numbers_of` reads what is in brackets. An IPv6 address in brackets is one
    name."""
    if "[" not in text and "]" not in text:
        return (text,)
    if text[0] == "[" and text.endswith("]") and text.count(":") > 1 and "[" not in text[1:] and "::" in text:
        return (text[1:-1],)
    parts: list[Sequence[str]] = []
    position, count = 0, 1
    for match in _BRACKET.finditer(text):
        parts.append((_literal(text, position, match.start()),))
        values = read_at(match.start(1) + 1, numbers_of, match[1])
        count *= len(values)
        _check_count(count, match.start() + 1)
        parts.append(values)
        position = match.end()
    parts.append((_literal(text, position, len(text)),))
    return ["".join(combination) for combination in product(*parts)]


def _literal(text: str, start: int, end: int) -> str:
    """Return the text between two brackets. Raises a WordError for a bracket without its partner."""
    part = text[start:end]
    stray = re.search(r"[\[\]]", part)
    if stray is not None:
        problem = "this '[' is never closed" if stray[0] == "[" else "this ']' has no '[' before it"
        raise WordError(problem, column=start + stray.start() + 1, fix="such as node[1-4]")
    return part


def _numbers(content: str) -> Sequence[str]:
    """Return the numbers of a bracket such as `1-4,7`, as texts with their padding."""
    values: list[str] = []
    start = 1
    for item in content.split(","):
        column = start + len(item) - len(item.lstrip())
        values.extend(read_at(column, _range, item.strip()))
        _check_count(len(values), column)
        start += len(item) + 1
    return values


def _range(item: str) -> Sequence[str]:
    """Return the numbers of a range such as `1-4` or `1-9/2`, or of a single number."""
    match = _RANGE.fullmatch(item)
    if match is None:
        raise _bad_range(item)
    first, last, step = match.groups()
    if max(map(len, (first, last or "", step or ""))) > _MAX_DIGITS:
        raise WordError(f"a number has at most {_MAX_DIGITS} digits")
    if last is None:
        return (first,)
    return _number_range(first, last, step)


def _number_range(first: str, last: str, step: str | None) -> Sequence[str]:
    """Return the numbers from first to last, padded to one width if one of them is. Raises a WordError for a range that
    runs backwards or has too many numbers."""
    padded = (first[0] == "0" and len(first) > 1) or (last[0] == "0" and len(last) > 1)
    if padded and len(first) != len(last):
        raise WordError(
            f"{first} and {last} are not padded to one width",
            fix=f"such as {first.zfill(len(last))}-{last.zfill(len(first))}",
        )
    low, high, stride = int(first), int(last), int(step or 1)
    if high < low:
        raise WordError(f"{first}-{last} runs backwards", fix=f"{last}-{first}")
    if stride == 0:
        raise WordError("a step of 0 never ends", fix=f"{first}-{last}/1")
    _check_count((high - low) // stride + 1)
    width = len(first) if padded else 0
    return [str(number).zfill(width) for number in range(low, high + 1, stride)]


def _bad_range(item: str) -> WordError:
    """Return the error for text in brackets that is no range, with the fix for what it looks like."""
    problem, fix = f"{quote(item)} is not a number or a range", "such as node[1-4,7]"
    if not item:
        problem = "a number is missing here"
    elif ":" in item or ".." in item:
        problem, fix = f"{quote(item)}: a range is written with '-'", "such as node[1-4]"
    elif re.fullmatch(r"[0-9]+-", item):
        problem, fix = f"{quote(item)} has no end", f"such as {item}{int(item[:18].strip('-')) + 3}"
    return WordError(problem, fix=fix)


def _ansible_range(content: str) -> Sequence[str]:
    """Return the numbers or letters of an Ansible range such as `01:10:2` or `a:c`; other text is read as in a
    hostfile."""
    match = _ANSIBLE_RANGE.fullmatch(content)
    if match is None:
        if ":" in content:
            raise WordError(f"{quote(content)} is not a range", fix="such as [01:10] or [a:c]")
        return _numbers(content)
    first, last, step = match.groups()
    if max(map(len, (first, last, step or ""))) > _MAX_DIGITS:
        raise WordError(f"a number has at most {_MAX_DIGITS} digits")
    if not last.isalpha() and not first.isalpha():
        return _number_range(first or "0", last, step)
    low, high, stride = ascii_letters.find(first or "?"), ascii_letters.find(last), int(step or 1)
    if low < 0 or high < low or stride == 0:
        raise WordError(f"{quote(content)} is not a range", fix="such as [01:10] or [a:c]")
    return ascii_letters[low : high + 1 : stride]


def _check_count(count: int, column: int = 1) -> None:
    """Refuse more than MAX_HOSTS hosts in a line."""
    if count > MAX_HOSTS:
        raise WordError(
            f"this would be {count:,} hosts; a line names at most {MAX_HOSTS:,}",
            column=column,
            fix="look for a digit too many",
        )
