"""Measures the steps of a rank in a trial of `autotune`, and says when they are enough. Pure.

In come the records of the rank's step meter; out go `TrialFigures`. The rules: warm-up is over when 5 steps in a row
agree within 5 %, or, for steps that vary, when the medians of two fives in a row do; then at least 20 steps and 5 s are
measured. 60 s after the first step the trial ends with what it has. The rate is that of all measured steps; samples
a step are the median, as the last batch of an epoch may be smaller. With --metric the values that the script prints
count in the same way: 5 that agree, then at least 5 more in 5 s. A rank whose steps can't be counted is done 60 s after
its training has begun: after its first backward pass, or, without torch, after the start of its command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Sequence

from ipexctl.node.common.records import TrialFigures

if TYPE_CHECKING:
    from ipexctl.node.run.meter_reader import StepRecord

AGREEING = 5
TOLERANCE = 0.05
FEWEST_STEPS = 20
FEWEST_SECONDS = 5.0
LONGEST = 60.0
_NANO = 1e9


class TrialMeter:
    """The steps of one rank."""

    def __init__(self, *, has_metric: bool = False) -> None:
        self._values: list[tuple[float, float]] | None = [] if has_metric else None
        """Times and values that the script has printed, with --metric."""
        self._records: list[StepRecord] = []
        """From the first step on; at most one in 20 ms, for LONGEST."""
        self._seconds: list[float] = []
        """The length of the steps before warm-up was over."""
        self._warm: int | None = None
        """The record at which measuring begins."""
        self._started: float | None = None
        """When the command was started, until it has loaded torch."""
        self._begun: float | None = None
        """When its first backward pass had ended."""

    @property
    def waits_for_torch(self) -> bool:
        return self._started is not None and not self._records

    def start(self, now: float) -> None:
        """The command was started. With --metric it need not use torch, and nothing says when it begins to train."""
        if self._values is None:
            self._started = now

    def on_torch(self) -> None:
        """The command has loaded torch: its first backward pass will be seen."""
        self._started = None

    def add_metric(self, now: float, value: float) -> None:
        if self._values is not None and value > 0 and (not self._values or now - self._values[0][0] <= LONGEST):
            self._values.append((now, value))
            if self._warm is None and is_warm([known for _, known in self._values]):
                self._warm = len(self._values)

    def add(self, records: Iterable[StepRecord]) -> None:
        for record in records:
            if not record.steps:
                self._begun = record.wall / _NANO
                continue
            if not self._records:
                self._records.append(record)
                continue
            last = self._records[-1]
            steps, length = record.steps - last.steps, (record.wall - last.wall) / _NANO
            if steps <= 0 or length <= 0 or (record.wall - self._records[0].wall) / _NANO > LONGEST:
                continue
            self._records.append(record)
            if self._warm is None:
                self._seconds += [length / steps] * min(steps, AGREEING)
                if is_warm(self._seconds):
                    self._warm = len(self._records) - 1

    def figures(self, now: float) -> TrialFigures | None:
        """`now`: seconds of the records' clock. None before the training has begun."""
        if self._values:
            return self._figures_of_values(self._values, now)
        if self._values is not None or not self._records:
            return self._figures_without_steps(now)
        first, last = self._records[0], self._records[-1]
        # Of a script whose steps never agree, the second half counts.
        measured = self._records[self._warm if self._warm is not None else len(self._records) // 2 :]
        steps = last.steps - measured[0].steps
        seconds = (last.wall - measured[0].wall) / _NANO
        is_enough = self._warm is not None and steps >= FEWEST_STEPS and seconds >= FEWEST_SECONDS
        return TrialFigures(
            rate=steps / seconds if seconds else 0.0,
            steps=steps,
            samples_per_step=_samples_per_step(measured),
            first_step=first.wall / _NANO,
            since_step=max(0.0, now - last.wall / _NANO),
            is_warm=self._warm is not None,
            is_done=is_enough or now - first.wall / _NANO >= LONGEST,
        )

    def _figures_without_steps(self, now: float) -> TrialFigures | None:
        """None as long as the training may not have begun."""
        first_step = self._records[0].wall / _NANO if self._records else None
        begun = min((at for at in (self._begun, self._started, first_step) if at is not None), default=None)
        if begun is None:
            return None
        is_done = now - begun >= LONGEST
        return TrialFigures(0.0, 0, None, begun, max(0.0, now - begun), False, is_done, has_stepped=False)

    def _figures_of_values(self, values: Sequence[tuple[float, float]], now: float) -> TrialFigures:
        measured = values[self._warm if self._warm is not None else len(values) // 2 :]
        seconds = measured[-1][0] - measured[0][0] if measured else 0.0
        is_enough = self._warm is not None and len(measured) >= AGREEING and seconds >= FEWEST_SECONDS
        return TrialFigures(
            rate=sum(value for _, value in measured) / len(measured) if measured else 0.0,
            steps=len(measured),
            samples_per_step=None,
            first_step=values[0][0],
            since_step=max(0.0, now - values[-1][0]),
            is_warm=self._warm is not None,
            is_done=is_enough or now - values[0][0] >= LONGEST,
        )


def _samples_per_step(records: Sequence[StepRecord]) -> float | None:
    """The median; None unless they are known of all steps."""
    pairs = list(zip(records, records[1:]))
    if not pairs or any(record.unknown or record.samples <= before.samples for before, record in pairs):
        return None
    return _median([(record.samples - before.samples) / (record.steps - before.steps) for before, record in pairs])


def is_warm(seconds: Sequence[float]) -> bool:
    """Whether the last steps agree."""
    last = seconds[-AGREEING:]
    if len(last) < AGREEING:
        return False
    if max(last) - min(last) <= TOLERANCE * _median(last):
        return True
    before = seconds[-2 * AGREEING : -AGREEING]
    return len(before) == AGREEING and abs(_median(last) - _median(before)) <= TOLERANCE * _median(before)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
