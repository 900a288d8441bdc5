"""Finds the loss in a line of output, and reads what rank 0 printed: in nearly all scripts rank 0 prints the losses."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any, Iterable, Iterator

from ipexctl.node.common.frames import SUFFIXES, StreamName
from ipexctl.node.run.record.output_times import TimesReader

MAX_BYTES = 32 << 20
MAX_LOSSES = 100_000
MAX_POINTS = 4000
"""Losses that a page gets; of more, the means of as many groups."""
_MAX_LINE = 2000
_COLOR = re.compile(r"\x1b\[[0-9;:]*m")
NUMBER = r"[-+]?(?:\d{1,20}\.?\d{0,20}|\.\d{1,20})(?:e[-+]?\d{1,3})?"
IS = r"['\"]?\s{0,4}[=:#\[(]?\s{0,4}['\"]?"
"""Text between a name and its number; transformers prints the number as text: `'loss': '2.068'`."""
_LOSS = re.compile(rf"(?:\b(\w+)[ _/.:|-]{{1,3}})?(?<![a-z])loss\b{IS}({NUMBER}|[-+]?(?:nan|inf))(?![\w%]|\.\d)", re.I)
_NOT_TRAINING = frozenset({"eval", "val", "valid", "validation", "test", "dev", "best", "min", "avg"})
_END = "train_runtime"
"""Marks the last line of transformers, in which `train_loss` is the mean of the training."""


def plain_text(line: bytes) -> str:
    """Return the beginning of a line without colors."""
    return _COLOR.sub("", line[:_MAX_LINE].decode(errors="replace"))


def training_loss(line: str) -> float | None:
    """Return the loss that a line of output names; None if it names none, or only one of a validation or of the whole
    training."""
    if "loss" not in line.lower() or _END in line:
        return None
    losses = (match for match in _LOSS.finditer(line) if (match[1] or "").lower() not in _NOT_TRAINING)
    return next((float(match[2]) for match in losses), None)


_NAMED = re.compile(rf"(?<![\w.])([a-z][\w/@-]{{1,40}}){IS}({NUMBER})(?![\w%]|\.\d)", re.I)
_NO_SERIES = re.compile(
    r".*loss|(global_|train_)?(epoch|step|iter|iteration|batch)s?|it|rank|at|in|of|to|took|(.*_)?(time|eta|secs?|seconds)",
    re.I,
)
"""Counters, times, and words before a number; other losses have names of their own."""
MAX_SERIES = 4


def find_series(lines: Iterable[tuple[float, str]]) -> dict[str, list[tuple[float, float]]]:
    """Return the numbers that most lines with a loss have besides it, such as an accuracy, by their names. Constant
    ones are left out."""
    points_of: dict[str, list[tuple[float, float]]] = {}
    count = 0
    for at, text in lines:
        if training_loss(text) is None or count >= MAX_LOSSES:
            continue
        count += 1
        named = {match[1]: float(match[2]) for match in _NAMED.finditer(text) if not _NO_SERIES.fullmatch(match[1])}
        for name, value in named.items():
            points_of.setdefault(name, []).append((at, value))
    usual = {name: points for name, points in points_of.items() if 2 * len(points) > count}
    shown = [name for name, points in usual.items() if len({value for _, value in points}) > 1][:MAX_SERIES]
    return {name: usual[name] for name in shown}


def read_series(directory: str) -> dict[str, list[tuple[float, float]]]:
    """Return what rank 0 printed beside the losses, such as an accuracy: name → times and values. Empty if there is
    nothing.

    `directory`: of a run, or of a copy of its record.
    """
    series_of_streams = map(find_series, lines_of_rank_0(directory))
    return {name: thin(points) for name, points in next(filter(None, series_of_streams), {}).items()}


def lines_of_rank_0(directory: str) -> list[list[tuple[float, str]]]:
    """Return the lines of each stream of rank 0 with the times at which they were received; empty for a run without
    `output.times`."""
    times = TimesReader(os.path.join(directory, "output.times"), 2)
    ends: dict[StreamName, list[tuple[float, int]]] = {}
    for at, (rank, stream), end in times.entries():
        if rank == 0:
            ends.setdefault(stream, []).append((at, end))
    lines_of_streams = []
    for stream, steps in ends.items():
        with contextlib.suppress(OSError), open(
            os.path.join(directory, "ranks", f"0000.{SUFFIXES[stream]}"), "rb"
        ) as file:
            lines_of_streams.append(list(timed_lines(file.read(MAX_BYTES), steps)))
    return lines_of_streams


def thin(points: list[Any]) -> list[Any]:
    """Return the means of groups of points, if there are many; the last point stays as it is."""
    size = -(-len(points) // MAX_POINTS)
    groups = [points[at : at + size] for at in range(0, len(points), size or 1)]
    means = [(group[-1][0], sum(point[1] for point in group) / len(group), *group[-1][2:]) for group in groups[:-1]]
    return [*means, *points[-1:]]


def timed_lines(data: bytes, steps: Iterable[tuple[float, int]]) -> Iterator[tuple[float, str]]:
    """Yield each line with the time at which its end was received. `steps`: times, and the size of the output at
    each."""
    begin = 0
    for at, end in steps:
        last = max(data.rfind(b"\n", begin, end), data.rfind(b"\r", begin, end)) + 1
        if last <= begin:
            continue
        for line in re.split(rb"[\r\n]+", data[begin:last]):
            if line:
                yield at, plain_text(line)
        begin = last
