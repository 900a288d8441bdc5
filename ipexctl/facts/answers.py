"""The probe's lines by their key, and careful ways to make values of them. Pure.

Nothing here raises, whatever the text: what can't be read isn't there.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_KEY = re.compile(r"[A-Za-z][\w.]*")


@dataclass(frozen=True, slots=True)
class Answers:
    """What the probe said, line by line; a key that was never said has no values."""

    values: Mapping[str, tuple[str, ...]]

    def all(self, key: str) -> tuple[str, ...]:
        return self.values.get(key, ())

    def first(self, key: str) -> str | None:
        return next(iter(self.all(key)), None)

    def words(self, key: str) -> list[str]:
        return (self.first(key) or "").split()

    def named(self, key: str) -> dict[str, str]:
        """Values that are `NAME: REST` themselves, by that name; of two the first."""
        found: dict[str, str] = {}
        for line in self.all(key):
            name, colon, value = line.partition(":")
            if colon and value.strip():
                found.setdefault(name.strip(), value.strip())
        return found

    def __contains__(self, key: str) -> bool:
        return key in self.values


def read_answers(text: str) -> Answers:
    """Sort lines by key. A block whose end we never saw is left out: a half of it would be a wrong answer."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    block: str | None = None
    held: list[str] = []
    for line in text.split("\n")[:-1]:
        if line == "==" or line.startswith("== "):
            if block is not None:
                found[block] += held
            block, held = line[3:].strip() or None, []
        elif block is not None:
            held.append(line)
        else:
            key, _, value = line.partition(" ")
            if value and _KEY.fullmatch(key):
                found[key].append(value.strip())
    return Answers({key: tuple(values) for key, values in found.items()})


def number(text: str | None) -> int | None:
    """A whole number of a size that can be one: no kernel prints twenty digits."""
    text = (text or "").strip()
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else None


def natural(text: str | None) -> int | None:
    found = number(text)
    return found if found is not None and found >= 0 else None


def seconds(text: str | None) -> float | None:
    """`date +%s.%N`; a date that knows no %N is right to the second, so its middle is meant."""
    match = re.match(r"([0-9]{1,12})(?:\.([0-9]{9}))?", text or "")
    if match is None:
        return None
    return int(match[1]) + (int(match[2]) / 1e9 if match[2] else 0.5)


def decimal(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else None


def limit(text: str) -> float | None:
    return math.inf if text == "unlimited" else natural(text)


def kilobytes(text: str | None) -> int | None:
    """`24684096 kB` in bytes."""
    found = natural((text or "").removesuffix("kB"))
    return None if found is None else found * 1024


def settings(text: str) -> Iterator[tuple[str, str]]:
    """`type=1 mtu=1500` in pairs."""
    for word in text.split():
        key, equals, value = word.partition("=")
        if equals:
            yield key, value
