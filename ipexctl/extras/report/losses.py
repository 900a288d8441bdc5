"""Losses that a script printed, with the time node0 received each line, from the copy of a run.

Reads rank 0's output, which has the loss in nearly all scripts; too long output from its beginning.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from ipexctl.node.common.frames import SUFFIXES
from ipexctl.node.run.output_times import TimesReader
from ipexctl.text import without_colors
from ipexctl.ui.run.figures import training_loss

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ipexctl.node.common.frames import StreamName

MAX_BYTES: Final = 32 << 20
MAX_LOSSES: Final = 100_000
_MAX_LINE: Final = 2000


def find_losses(lines: Iterable[tuple[float, str]]) -> tuple[tuple[float, float], ...]:
    found: list[tuple[float, float]] = []
    for at, line in lines:
        value = training_loss(without_colors(line[:_MAX_LINE]))
        if value is not None and math.isfinite(value) and len(found) < MAX_LOSSES:
            found.append((at, value))
    return tuple(found)


def read_losses(copy: Path) -> tuple[tuple[float, float], ...]:
    times = TimesReader(str(copy / "output.times"), 2)
    if not times.exists:
        return ()
    ends: dict[StreamName, list[tuple[float, int]]] = {}
    for at, (rank, stream), end in times.entries():
        if rank == 0:
            ends.setdefault(stream, []).append((at, end))
    for stream, steps in ends.items():
        try:
            with (copy / "ranks" / f"0000.{SUFFIXES[stream]}").open("rb") as file:
                data = file.read(MAX_BYTES)
        except OSError:
            continue
        if found := find_losses(timed_lines(data, steps)):
            return found
    return ()


def timed_lines(data: bytes, steps: Iterable[tuple[float, int]]) -> Iterator[tuple[float, str]]:
    """Lines with the time their end was received. `steps`: time, and size of the output then."""
    begin = 0
    for at, end in steps:
        last = max(data.rfind(b"\n", begin, end), data.rfind(b"\r", begin, end)) + 1
        if last <= begin:
            continue
        for line in re.split(rb"[\r\n]+", data[begin:last]):
            if line:
                yield at, line.decode(errors="replace")
        begin = last
