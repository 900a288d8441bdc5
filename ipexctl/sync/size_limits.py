"""Whether a project is more than one would send without a word, and what makes it so. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ipexctl.errors import UserError
from ipexctl.sync.ignore import pattern_for
from ipexctl.text import readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ipexctl.sync.scan import ScanResult

MOST_BYTES: Final = 1_000_000_000
MOST_FILES: Final = 20_000
_SHOWN: Final = 3
_MOST_OF_IT: Final = 0.8
"""A directory stands for what is in it, until one thing in it is this much of it."""


@dataclass(frozen=True, slots=True)
class LargeEntry:
    """A path, and all that is below it."""

    path: str
    size: int
    files: int
    is_directory: bool

    def __str__(self) -> str:
        count = f" in {self.files:,} files" if self.is_directory else ""
        return f"{self.path}{'/' * self.is_directory} ({readable(self.size)}{count})"


def heaviest(files: Iterable[tuple[str, int]], *, by_count: bool = False) -> tuple[LargeEntry, ...]:
    """The three that weigh most, none of them within another."""
    sizes: dict[str, list[int]] = {}
    below: dict[str, set[str]] = {}
    for path, size in files:
        at = path
        while True:
            total = sizes.setdefault(at, [0, 0])
            total[0] += size
            total[1] += 1
            if not at:
                break
            above = at.rpartition("/")[0]
            below.setdefault(above, set()).add(at)
            at = above
    key = 1 if by_count else 0

    def settle(path: str) -> Iterator[LargeEntry]:
        while path in below:
            largest = max(below[path], key=lambda each: sizes[each][key])
            if sizes[largest][key] < _MOST_OF_IT * sizes[path][key]:
                break
            path = largest
        size, count = sizes[path]
        yield LargeEntry(path, size, count, path in below)

    tops = sorted(below.get("", ()), key=lambda each: -sizes[each][key])[:_SHOWN]
    return tuple(heavy for top in tops for heavy in settle(top))


def refuse_big(root: Path, seen: ScanResult) -> None:
    """Raise a UserError where it is too much to send unasked."""
    if seen.complete and seen.size <= MOST_BYTES and seen.files <= MOST_FILES:
        return
    by_count = seen.size <= MOST_BYTES
    heavy = heaviest(((one.path, one.size) for one in seen.found if one.kind != "d"), by_count=by_count)
    least = "" if seen.complete else "at least "
    first = pattern_for(heavy[0].path) + "/" * heavy[0].is_directory if heavy else "/data/"
    raise UserError(
        f"{root} is {least}{readable(seen.size)} in {seen.files:,} files, which isn't sent without a word; most of it: "
        + ", ".join(map(str, heavy)),
        fix=f"leave out what isn't code: the line {first} in {root}/.ipexctlignore, or --exclude '{first}'; "
        "for data that lies on every node, --data DIR; to send it all, --allow-big",
    )
