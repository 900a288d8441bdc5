"""Reads loss, step, epoch and speed from a script's output, and draws a small loss curve. Pure.

In come lines of ranks as text; out come the last values, and a curve in bounded memory. The rule: the lowest rank that
prints a loss is believed, and a loss of validation is none of training.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUMBER: Final = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
_LOSS: Final = re.compile(rf"(?:\b(\w+)[ _/.-])?(?<![a-z])loss\b['\"]?\s*[=:(]?\s*({_NUMBER}|[-+]?(?:nan|inf)\b)", re.I)
_NOT_TRAINING: Final = frozenset({"eval", "val", "valid", "validation", "test", "dev", "best", "min", "avg"})
_STEP: Final = re.compile(
    r"\b(?:step|iter|iteration|batch)s?\b['\"]?\s*[=:#\[(]?\s*(\d{1,12})(?:\s*(?:/|of)\s*(\d{1,12}))?", re.I
)
_EPOCH: Final = re.compile(
    r"\bepochs?\b['\"]?\s*[=:#\[(]?\s*(\d{1,9}(?:\.\d+)?)(?:\s*(?:/|of)\s*(\d{1,9}(?:\.\d+)?))?", re.I
)
_BAR: Final = re.compile(r"\d%\|.*\|\s*(\d{1,12})/(\d{1,12})\s*\[")
_SPEED: Final = re.compile(
    rf"\b({_NUMBER})\s*((?:it|step|batch|sample|img|image|token|tok|example|seq)(?:e?s)?/s(?:ec)?|s/it)\b", re.I
)
_HINTS: Final = re.compile(r"loss|step|iter|epoch|batch|/s\b|s/it|%\|", re.I)

_RAISED: Final = "▁▂▃▄▅▆▇█"
_PLAIN: Final = "_.-~=+*#"
_MOST_POINTS: Final = 512


class Curve:
    """Values over time in bounded memory: when it is full, each two points are merged into one."""

    def __init__(self) -> None:
        self._points: list[float] = []
        self._stride = 1
        self._sum, self._count = 0.0, 0
        self._last = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Add a value that stands for `count` values."""
        if not math.isfinite(value):
            return
        self._last = value
        self._sum += value * count
        self._count += count
        while self._count >= self._stride:
            mean = self._sum / self._count
            self._points.append(mean)
            self._count -= self._stride
            self._sum = mean * self._count
            if len(self._points) == _MOST_POINTS:
                pairs = zip(self._points[::2], self._points[1::2], strict=True)
                self._points = [(first + second) / 2 for first, second in pairs]
                self._stride *= 2

    @property
    def points(self) -> list[float]:
        return [*self._points, self._last] if self._count else list(self._points)


class Figures:
    """Progress of the training, read from the lowest rank that prints a loss."""

    def __init__(self) -> None:
        self.curve = Curve()
        self.loss: float | None = None
        self.step: tuple[int, int | None] | None = None
        self.epoch: tuple[str, str | None] | None = None
        self.speed = ""
        self._loss_from: int | None = None
        self._progress_from: int | None = None
        self._step_in_words = False

    def read_line(self, rank: int, line: str, *, unfinished: bool = False, count: int = 1) -> None:
        """Read one line, which stands for `count` lines with a loss.

        A progress bar repeats its loss, so an `unfinished` line adds a point only if it changed.
        """
        if (self._loss_from is not None and rank > self._loss_from) or not _HINTS.search(line):
            return
        losses = (found for found in _LOSS.finditer(line) if (found[1] or "").lower() not in _NOT_TRAINING)
        loss = next((float(found[2]) for found in losses), None)
        if loss is not None and not (unfinished and loss == self.loss):
            if rank != self._loss_from:
                self._loss_from, self.curve = rank, Curve()
            self.curve.add(loss, count)
        if loss is not None:
            self.loss = loss
        if self._progress_from is None or rank <= self._progress_from:
            self._read_progress(rank, line)

    def _read_progress(self, rank: int, line: str) -> None:
        bar, step_text, epoch, speed = (pattern.search(line) for pattern in (_BAR, _STEP, _EPOCH, _SPEED))
        if (bar or step_text or epoch or speed) and rank != self._progress_from:
            self._progress_from, self._step_in_words = rank, False
        # In a script that prints steps in words, the bars can be about something else: an epoch, a download.
        self._step_in_words = self._step_in_words or bool(step_text and step_text[2] and not bar)
        step = step_text if self._step_in_words and not bar else None if self._step_in_words else bar or step_text
        if step:
            self.step = int(step[1]), int(step[2]) if step[2] else None
        if epoch:
            self.epoch = epoch[1], epoch[2]
        if speed:
            self.speed = f"{speed[1]} {speed[2]}"


def sparkline(points: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """The points as a curve of at most `width` characters, scaled from the lowest to the highest."""
    if not points or width < 1:
        return ""
    steps = _RAISED if unicode else _PLAIN
    columns = min(width, len(points))
    edges = [index * len(points) // columns for index in range(columns + 1)]
    means = [sum(points[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    spread = high - low
    if not spread or not math.isfinite(spread):
        return steps[0] * columns
    return "".join(steps[min(len(steps) - 1, int((mean - low) / spread * len(steps)))] for mean in means)
