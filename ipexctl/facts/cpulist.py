"""Lists of CPU numbers as the kernel writes them: `0-3,8`. Pure."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAX_CPUS: Final = 1 << 16
"""No kernel supports more CPUs; a broken `0-99999999999` must not exhaust the memory."""
_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


@dataclass(frozen=True, slots=True)
class CpuList:
    """Numbers of logical CPUs, ascending and unique. `str` gives the kernel's format."""

    cpus: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> CpuList:
        return cls(tuple(sorted(set(numbers))))

    def __len__(self) -> int:
        return len(self.cpus)

    def __iter__(self) -> Iterator[int]:
        return iter(self.cpus)

    def __contains__(self, number: int) -> bool:
        return number in self.cpus

    def __and__(self, other: CpuList) -> CpuList:
        kept = set(other.cpus)
        return CpuList(tuple(number for number in self.cpus if number in kept))

    def covers(self, other: CpuList) -> bool:
        return set(self.cpus) >= set(other.cpus)

    def __str__(self) -> str:
        parts: list[str] = []
        start = 0
        for position, number in enumerate(self.cpus):
            if position + 1 == len(self.cpus) or self.cpus[position + 1] != number + 1:
                first = self.cpus[start]
                parts.append(f"{first}" if first == number else f"{first}-{number}")
                start = position + 1
        return ",".join(parts)


@functools.lru_cache(maxsize=8192)
def parse_cpulist(text: str) -> CpuList | None:
    """Parse `0-3,8`; None for an empty or invalid list. Cached, because hosts of a cluster have equal lists."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            return None
        first = int(match[1])
        last = int(match[2] or match[1])
        if last < first or last >= _MAX_CPUS:
            return None
        numbers.update(range(first, last + 1))
    return CpuList.of(numbers)
