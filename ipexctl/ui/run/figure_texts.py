"""Keep the loss curve of a run, from the lines that it prints, in bounded memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from ipexctl.node.run.record.printed import PrintedFigures

_RAISED: Final = "▁▂▃▄▅▆▇█"
_PLAIN: Final = "_.-~=+*#"
_MOST_POINTS: Final = 512
"""Points of a curve."""


class Curve:
    """Values over time in bounded memory. When it is full, pairs of points are merged."""

    def __init__(self) -> None:
        self._points: list[float] = []
        self._stride = 1
        self._sum, self._count = 0.0, 0
        self._last = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Add a value that stands for `count` values. NaN and infinity are left out."""
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
        """The means so far, and the last value if it is not in them yet."""
        return [*self._points, self._last] if self._count else list(self._points)


class Figures(PrintedFigures):
    """Figures that ranks print, with the curve of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.curve = Curve()

    def read_line(self, rank: int, line: str, *, unfinished: bool = False, count: int = 1) -> float | None:
        """Read a line, which stands for `count` lines; return its loss, or None without one.

        A loss from another source than before begins a new curve.
        """
        before = self.loss_from
        loss = super().read_line(rank, line, unfinished=unfinished)
        if loss is not None:
            self.curve = self.curve if before == self.loss_from else Curve()
            self.curve.add(loss, count)
        return loss


def sparkline(points: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """Draw a curve with at most `width` characters, scaled from its lowest to its highest value; empty without
    points.
    """
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
