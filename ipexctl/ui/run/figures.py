"""Reads loss, step, epoch and speed from a script's output, and draws a small loss curve. Pure. Only the lowest rank
that prints a loss is read, and no validation loss. Steps come from the progress bar that moved last before a loss was
printed, because evaluations, downloads and saved files have bars too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from ipexctl.node.run.record.losses import IS, NUMBER, training_loss

_STEP: Final = re.compile(
    rf"\b(?:step|iter|iteration|batch)s?\b{IS}(\d{{1,12}})(?:\s{{0,4}}(?:/|of)\s{{0,4}}(\d{{1,12}}))?", re.I
)
_OF: Final = r"\d{1,9}(?:\.\d{1,20})?"
_EPOCH: Final = re.compile(rf"\bepochs?\b{IS}({_OF})(?:\s{{0,4}}(?:/|of)\s{{0,4}}({_OF}))?", re.I)
_BAR: Final = re.compile(r"\d%\|[^|]*\|\s{0,4}(\d{1,12})/(\d{1,12})\s{0,4}\[")
_ASIDE: Final = re.compile(
    r"\b(?:writing|saving|loading|downloading|uploading|fetching|generating|materializing|tokenizing|running|map|filter"
    r"|eval\w*|valid\w*|test\w*|predict\w*)\b",
    re.I,
)
_SPEED: Final = re.compile(
    rf"\b({NUMBER})\s*((?:it|step|batch|sample|img|image|token|tok|example|seq)(?:e?s)?/s(?:ec)?|s/it)\b", re.I
)
_HINTS: Final = re.compile(r"loss|step|iter|epoch|batch|/s\b|s/it|%\|", re.I)

_RAISED: Final = "▁▂▃▄▅▆▇█"
_PLAIN: Final = "_.-~=+*#"
_MOST_POINTS: Final = 512


class Curve:
    """Values over time in bounded memory. When it is full, pairs of points are merged."""

    def __init__(self) -> None:
        self._points: list[float] = []
        self._stride = 1
        self._sum, self._count = 0.0, 0
        self._last = 0.0

    def add(self, value: float, count: int = 1) -> None:
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
    def __init__(self) -> None:
        self.curve = Curve()
        self.loss: float | None = None
        self.step: tuple[int, int | None] | None = None
        self.epoch: tuple[str, str | None] | None = None
        self.speed = ""
        self._loss_from: int | None = None
        self._progress_from: int | None = None
        self._step_in_words = False
        self._bar: int | None = None
        """Total of the training's progress bar; None before a loss was printed."""
        self._next_bar = 0
        """Total of that bar if it moved since the last loss, else the largest of unfinished bars, or 0."""

    def read_line(self, rank: int, line: str, *, unfinished: bool = False, count: int = 1) -> None:
        """`line`: one of `count` lines. A bar repeats its loss, so an `unfinished` line counts only if changed."""
        if (self._loss_from is not None and rank > self._loss_from) or not _HINTS.search(line):
            return
        loss = training_loss(line)
        if loss is not None and not (unfinished and loss == self.loss):
            if rank != self._loss_from:
                self._loss_from, self.curve = rank, Curve()
            self.curve.add(loss, count)
        if loss is not None:
            self.loss = loss
        if self._progress_from is None or rank <= self._progress_from:
            self._read_progress(rank, line, has_loss=loss is not None)

    def _read_progress(self, rank: int, line: str, *, has_loss: bool) -> None:
        bar, step_text, epoch, speed = (pattern.search(line) for pattern in (_BAR, _STEP, _EPOCH, _SPEED))
        if bar and not has_loss and _ASIDE.search(line, 0, bar.start()):
            return
        if (bar or step_text or epoch or speed) and rank != self._progress_from:
            self._progress_from, self._step_in_words = rank, False
            self._bar, self._next_bar = None, 0
        done, total = (int(bar[1]), int(bar[2])) if bar else (0, 0)
        if bar and (has_loss or total == self._bar):
            self._next_bar = total
        elif done < total and self._next_bar != self._bar:
            self._next_bar = max(self._next_bar, total)
        elif bar and self._next_bar == total:
            self._next_bar = 0
        if has_loss and self._next_bar:
            self._bar, self._next_bar = self._next_bar, 0
        if bar and self._bar not in (None, total):
            return
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
    """At most `width` characters, scaled from lowest to highest."""
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
