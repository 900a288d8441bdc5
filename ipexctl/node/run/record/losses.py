"""Reads the losses that rank 0 printed from a run's record or a copy of it: in nearly all scripts rank 0 has them."""

from __future__ import annotations

import math
import os
import re
from typing import Iterable, Iterator

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
    """The begin of a line without colors."""
    return _COLOR.sub("", line[:_MAX_LINE].decode(errors="replace"))


def training_loss(line: str) -> float | None:
    if "loss" not in line.lower() or _END in line:
        return None
    losses = (found for found in _LOSS.finditer(line) if (found[1] or "").lower() not in _NOT_TRAINING)
    return next((float(found[2]) for found in losses), None)


def find_losses(lines: Iterable[tuple[float, str]]) -> list[tuple[float, float]]:
    """Losses with the time at which node0 received each line."""
    found: list[tuple[float, float]] = []
    for at, line in lines:
        value = training_loss(_COLOR.sub("", line[:_MAX_LINE]))
        if value is not None and math.isfinite(value) and len(found) < MAX_LOSSES:
            found.append((at, value))
    return found


_NAMED = re.compile(rf"(?<![\w.])([a-z][\w/@-]{{1,40}}){IS}({NUMBER})(?![\w%]|\.\d)", re.I)
_NO_SERIES = re.compile(
    r".*loss|(global_|train_)?(epoch|step|iter|iteration|batch)s?|it|rank|at|in|of|to|took|(.*_)?(time|eta|secs?|seconds)",
    re.I,
)
"""Counters, times, and words before a number; other losses have names of their own."""
MAX_SERIES = 4


def find_series(lines: Iterable[tuple[float, str]]) -> dict[str, list[tuple[float, float]]]:
    """Numbers that most lines with a loss have besides it, such as an accuracy, by their names; no constant ones."""
    found: dict[str, list[tuple[float, float]]] = {}
    count = 0
    for at, line in lines:
        text = _COLOR.sub("", line[:_MAX_LINE])
        if training_loss(text) is None or count >= MAX_LOSSES:
            continue
        count += 1
        named = {match[1]: float(match[2]) for match in _NAMED.finditer(text) if not _NO_SERIES.fullmatch(match[1])}
        for name, value in named.items():
            found.setdefault(name, []).append((at, value))
    usual = {name: points for name, points in found.items() if 2 * len(points) > count}
    shown = [name for name, points in usual.items() if len({value for _, value in points}) > 1][:MAX_SERIES]
    return {name: usual[name] for name in shown}


def read_losses(directory: str) -> list[tuple[float, float]]:
    return next((thin(found) for lines in _lines_of_rank_0(directory) if (found := find_losses(lines))), [])


def read_series(directory: str) -> dict[str, list[tuple[float, float]]]:
    found = (find_series(lines) for lines in _lines_of_rank_0(directory) if find_losses(lines))
    return {name: thin(points) for name, points in next(found, {}).items()}


def _lines_of_rank_0(directory: str) -> Iterator[list[tuple[float, str]]]:
    """The timed lines of each stream."""
    times = TimesReader(os.path.join(directory, "output.times"), 2)
    ends: dict[StreamName, list[tuple[float, int]]] = {}
    for at, (rank, stream), end in times.entries():
        if rank == 0:
            ends.setdefault(stream, []).append((at, end))
    for stream, steps in ends.items():
        try:
            with open(os.path.join(directory, "ranks", f"0000.{SUFFIXES[stream]}"), "rb") as file:
                data = file.read(MAX_BYTES)
        except OSError:
            continue
        yield list(timed_lines(data, steps))


def thin(losses: list[tuple[float, float]]) -> list[tuple[float, float]]:
    size = -(-len(losses) // MAX_POINTS)
    groups = (losses[at : at + size] for at in range(0, len(losses), size or 1))
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def timed_lines(data: bytes, steps: Iterable[tuple[float, int]]) -> Iterator[tuple[float, str]]:
    """Lines with the time at which their end was received. `steps`: a time, and the size of the output at that time."""
    begin = 0
    for at, end in steps:
        last = max(data.rfind(b"\n", begin, end), data.rfind(b"\r", begin, end)) + 1
        if last <= begin:
            continue
        for line in re.split(rb"[\r\n]+", data[begin:last]):
            if line:
                yield at, line.decode(errors="replace")
        begin = last
