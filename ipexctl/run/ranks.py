"""Parse and format sets of ranks, such as `0`, `0-3,8` or `all`. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from ipexctl.errors import UserError
from ipexctl.hosts.nodeset import fold
from ipexctl.text import number_ranges

_EXAMPLE: Final = "such as 0, 0-3,8 or all"
_ITEM: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([0-9]{1,9}))?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class RankSet:
    """Ranks that the user names. Ranks that the run does not have are left out where the set is used."""

    ranges: tuple[range, ...] = ()
    """Empty for all ranks."""

    def __contains__(self, rank: int) -> bool:
        return not self.ranges or any(rank in part for part in self.ranges)

    def __str__(self) -> str:
        if not self.ranges:
            return "all"
        return ",".join(
            f"{part[0]}" if len(part) == 1 else f"{part[0]}-{part[-1]}" + (f"/{part.step}" if part.step > 1 else "")
            for part in self.ranges
        )

    @property
    def has_all(self) -> bool:
        """True if every rank is in the set, whatever the size of the run."""
        return not self.ranges

    def within(self, world_size: int) -> RankSet:
        """Return the set; raise a UserError if the run has none of these ranks."""
        if self.ranges and not any(part[0] < world_size for part in self.ranges):
            last = f"0-{world_size - 1}" if world_size > 1 else "0"
            raise UserError(f"--ranks {self}: the run has no such rank", fix=f"its ranks are {last}")
        return self


EVERY_RANK: Final = RankSet()


def parse_ranks(text: str) -> RankSet:
    """Return the ranks of `0`, `0-3,8`, `0-15/4`, `[0-3]` as the view writes it, or `all`. Raises a UserError."""
    bare = text.strip()
    if bare.startswith("[") and bare.endswith("]"):
        bare = bare[1:-1].strip()
    if bare in {"all", "*"}:
        return EVERY_RANK
    return RankSet(tuple(_range(item.strip(), text) for item in bare.split(",")))


def _range(item: str, text: str) -> range:
    """Return the ranks of one item of a list. Raises a UserError."""
    match = _ITEM.fullmatch(item)
    if match is not None:
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if first <= last and step:
            return range(first, last + 1, step)
    raise UserError(f"ranks {text.strip()!r}: {item!r} is neither a rank nor a range of ranks", fix=_EXAMPLE)


def fold_ranks(ranks: Iterable[int]) -> str:
    """Return the ranks as ranges: `0-3,8`."""
    return number_ranges(sorted(set(ranks)))


def describe_ranks(ranks: Collection[int]) -> str:
    """Return `rank 3` or `ranks 0-2,4`."""
    return f"rank{'s' * (len(ranks) > 1)} {fold_ranks(ranks)}"


class RankOnHost(Protocol):
    """Any value that has a rank and its host."""

    @property
    def rank(self) -> int:
        """Number of the rank in the run."""

    @property
    def host(self) -> str:
        """Name of the host where the rank runs."""


def name_ranks(ranks: Collection[RankOnHost]) -> str:
    """Return `rank 3 on node2`, or `ranks 0-2,4 on node[1-2]`."""
    return f"{describe_ranks([rank.rank for rank in ranks])} on {fold(rank.host for rank in ranks)}"
