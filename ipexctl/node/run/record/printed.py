"""Reads loss, step, epoch and speed from lines of ranks. Pure. Only the lowest rank that prints a loss is read, and no
validation loss. Steps come from the progress bar that moved last before a loss was printed, because evaluations,
downloads and saved files have bars too; before the first loss, from a bar that names nothing but training.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import deque
from statistics import median
from typing import Sequence

from ipexctl.node.common.records import TrainingProgress
from ipexctl.node.run.record.losses import IS, MAX_LOSSES, NUMBER, lines_of_rank_0, thin, training_loss

_STEP = re.compile(
    rf"\b(?:step|iter|iteration|batch)s?\b{IS}(\d{{1,12}})(?:\s{{0,4}}(?:/|of)\s{{0,4}}(\d{{1,12}}))?", re.I
)
_OF = r"\d{1,9}(?:\.\d{1,20})?"
_EPOCH = re.compile(rf"\bepochs?\b{IS}({_OF})(?:\s{{0,4}}(?:/|of)\s{{0,4}}({_OF}))?", re.I)
_BAR = re.compile(r"\d%\|[^|]*\|\s{0,4}(\d{1,12})/(\d{1,12})\s{0,4}\[")
_NAMED = re.compile(r"[a-z]{2}", re.I)
_TRAINS = re.compile(r"\b(?:train\w*|epochs?|steps?|iter\w*|fit\w*|batch\w*|loss)\b", re.I)
_ASIDE = re.compile(
    r"\b(?:writing|saving|loading|downloading|uploading|fetching|generating|materializing|running|map|filter|dataset"
    r"|splits?|\w*tokeni[sz]\w*|pack\w*|eval\w*|valid\w*|test\w*|predict\w*)\b",
    re.I,
)
_SPEED = re.compile(
    rf"\b({NUMBER})\s*((?:it|step|batch|sample|img|image|token|tok|example|seq)(?:e?s)?/s(?:ec)?|s/it)\b", re.I
)
_HINTS = re.compile(r"loss|step|iter|epoch|batch|/s\b|s/it|%\|", re.I)


class PrintedFigures:
    def __init__(self) -> None:
        self.loss: float | None = None
        self.step: tuple[int, int | None] | None = None
        self.epoch: tuple[float | None, float | None] = (None, None)
        self.speed = ""
        self.loss_from: int | None = None
        self._progress_from: int | None = None
        self._step_in_words = False
        self._bar: int | None = None
        """Total of the training's progress bar; None before a loss was printed."""
        self._next_bar = 0
        """Total of that bar if it moved since the last loss, else the largest of unfinished bars, or 0."""

    def read_line(self, rank: int, line: str, *, unfinished: bool = False) -> float | None:
        """Return a new loss. A bar repeats its loss, so that of an `unfinished` line is new only if it has changed."""
        if (self.loss_from is not None and rank > self.loss_from) or not _HINTS.search(line):
            return None
        loss = training_loss(line)
        is_new = loss is not None and not (unfinished and loss == self.loss)
        if loss is not None:
            self.loss_from, self.loss = rank, loss
        if self._progress_from is None or rank <= self._progress_from:
            self._read_progress(rank, line, has_loss=loss is not None)
        return loss if is_new else None

    def _read_progress(self, rank: int, line: str, *, has_loss: bool) -> None:
        bar, step_text, epoch, speed = (pattern.search(line) for pattern in (_BAR, _STEP, _EPOCH, _SPEED))
        # A bar without a total is only a speed: `Generating train split: 20 examples [00:00, 17918.25 examples/s]`.
        rate = bar or (speed if not step_text else None)
        title = line[: rate.start()] if rate and not has_loss else ""
        if _ASIDE.search(title) or (bar and _NAMED.search(title) and not _TRAINS.search(title)):
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
            self.epoch = float(epoch[1]), float(epoch[2]) if epoch[2] else None
        if speed:
            self.speed = f"{speed[1]} {speed[2]}"

    def over(self, measured: TrainingProgress | None) -> TrainingProgress | None:
        """Return the progress as the script prints it, completed by what was measured; None if nothing is known.

        A printed step without a total, or of a bar before the first loss, is used only if the measured total is
        unknown.
        """
        step, steps = self.step or (None, None)
        is_sure = steps is not None and (self._step_in_words or self._bar is not None)
        if measured is not None and not is_sure and (measured.steps or step is None):
            step, steps = measured.step, measured.steps
        loss = self.loss if self.loss is not None or measured is None else measured.loss
        loss = loss if loss is not None and math.isfinite(loss) else None
        if step is None and loss is None and self.epoch[0] is None and not self.speed:
            return None
        shown = (measured or TrainingProgress())._replace(step=step, steps=steps, loss=loss, speed=self.speed)
        shown = shown._replace(epoch=self.epoch[0], epochs=self.epoch[1])
        if measured is not None and steps and steps == measured.steps and step is not None:
            shown = shown._replace(left=max(0, steps - step))
        return shown


def read_losses(directory: str) -> list[tuple[float, float, int | None]]:
    """Return time, value and step of each loss that rank 0 printed. `directory`: of a run's record, or of a copy of
    it."""
    return thin(find_losses(lines_of_rank_0(directory)))


def find_losses(streams: Sequence[Sequence[tuple[float, str]]]) -> list[tuple[float, float, int | None]]:
    """Return time, value and step of each loss in these lines. `streams`: lines with their times.

    All losses are from one stream, the first that has one; a progress bar may be in the other.
    """
    printed = PrintedFigures()
    losses: list[tuple[float, float, int | None]] = []
    numbered = [[(at, number, line) for at, line in lines] for number, lines in enumerate(streams)]
    own = next((number for lines in numbered for _, number, line in lines if training_loss(line) is not None), -1)
    for at, number, line in heapq.merge(*numbered, key=lambda timed_line: timed_line[0]):
        printed.read_line(0, line)
        value = training_loss(line) if number == own else None
        if value is not None and math.isfinite(value) and len(losses) < MAX_LOSSES:
            losses.append((at, value, printed.step[0] if printed.step is not None else None))
    return losses


class Movement:
    """When step or loss changed last, and how long a step usually takes. A look may be many steps after the last."""

    def __init__(self) -> None:
        self._value: tuple[int | None, float | None] | None = None
        self._at = 0.0
        self._gaps: deque[float] = deque(maxlen=16)

    def see(self, step: int | None, loss: float | None, now: float) -> tuple[float, float]:
        """Return the seconds since step or loss last changed, and the usual seconds of a step, 0 if unknown."""
        if (step, loss) != self._value:
            if self._value not in (None, (None, None)):
                self._gaps.append((now - self._at) / max(1, (step or 0) - (self._value[0] or 0)))
            self._value, self._at = (step, loss), now
        return now - self._at, median(self._gaps) if self._gaps else 0.0
