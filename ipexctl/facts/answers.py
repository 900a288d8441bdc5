"""Groups the probe's output by key and parses values. Pure; a value that can't be parsed is missing, never an error."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_KEY = re.compile(r"[A-Za-z][\w.]*")
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Answers:
    values: Mapping[str, tuple[str, ...]]

    def all(self, key: str) -> tuple[str, ...]:
        return self.values.get(key, ())

    def first(self, key: str) -> str | None:
        return next(iter(self.all(key)), None)

    def words(self, key: str) -> list[str]:
        return (self.first(key) or "").split()

    def named(self, key: str) -> dict[str, str]:
        """Values of the form `NAME: REST`, by name; the first value of a name counts."""
        result: dict[str, str] = {}
        for line in self.all(key):
            name, colon, value = line.partition(":")
            if colon and value.strip():
                result.setdefault(name.strip(), value.strip())
        return result

    def __contains__(self, key: str) -> bool:
        return key in self.values


def read_answers(text: str) -> Answers:
    """Drop a block that has no end, because half a block would be a wrong value."""
    result: defaultdict[str, list[str]] = defaultdict(list)
    block: str | None = None
    block_lines: list[str] = []
    for line in text.split("\n")[:-1]:
        if line == "==" or line.startswith("== "):
            if block is not None:
                result[block] += block_lines
            block, block_lines = line[3:].strip() or None, []
        elif block is not None:
            block_lines.append(line)
        else:
            key, _, value = line.partition(" ")
            if value and (key in result or _KEY.fullmatch(key)):
                result[key].append(value.strip())
    return Answers({key: tuple(values) for key, values in result.items()})


def number(text: str | None) -> int | None:
    """Parse at most 19 digits, because no kernel prints more."""
    text = (text or "").strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def natural(text: str | None) -> int | None:
    result = number(text)
    return result if result is not None and result >= 0 else None


def seconds(text: str | None) -> float | None:
    """Parse `date +%s.%N`. A date without %N is exact to a second, so half a second is added."""
    match = re.match(r"([0-9]{1,12})(?:\.([0-9]{9}))?", text or "")
    if match is None:
        return None
    return int(match[1]) + (int(match[2]) / 1e9 if match[2] else 0.5)


def decimal(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else None


def limit(text: str) -> float | None:
    return math.inf if text == "unlimited" else natural(text)


def kilobytes(text: str | None) -> int | None:
    result = natural((text or "").removesuffix("kB"))
    return None if result is None else result * 1024


def settings(text: str) -> Iterator[tuple[str, str]]:
    """Parse pairs such as `type=1 mtu=1500`."""
    for word in text.split():
        key, equals, value = word.partition("=")
        if equals:
            yield key, value
