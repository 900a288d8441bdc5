"""Compares how a candidate trains with the baseline: samples a step, and losses at the same steps. Pure.

In come an observation, that of the baseline in its block, and all observations of the plan of the call; out comes what
differs, or an empty text. The rules: samples are compared where both are known, and a candidate of which they are not
known beside a baseline of which they are is not comparable; losses depart if most of those at equal steps are further
from the baseline's than rounding and the baseline's own starts explain.
"""

from __future__ import annotations

import math
import re
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ipexctl.extras.autotune.model import Observation

SAMPLES_TOLERANCE: Final = 0.01
LOSS_TOLERANCE: Final = 0.02
"""Of the loss: other threads add up in another order."""
OWN_SPREAD: Final = 3.0
"""Times the range that the baseline's own starts have at this step."""
FEWEST_LOSSES: Final = 3
MOST_LOSSES: Final = 1000
_LOSS: Final = re.compile(
    r"""(?:^|[^a-z])loss(?:es)?['"]?\s*[:=]?\s*([0-9]{1,12}(?:\.[0-9]{1,20})?(?:e[-+]?[0-9]{1,3})?)""", re.I
)
_STEP: Final = re.compile(
    r"""(?:step|iter(?:ation)?|batch)['"]?\s*[:=]?\s*([0-9]{1,12})|\b([0-9]{1,12})/[0-9]""", re.IGNORECASE
)


def find_losses(lines: Iterable[str]) -> tuple[tuple[str, float], ...]:
    """The losses in lines of output, each with its step: the number in the same line, else its place among them.

    A part of a progress bar ends with \\r: how many of them there are depends on time, so that they have no place.
    """
    found: dict[str, float] = {}
    for line in lines:
        loss = _LOSS.search(line)
        if loss is None or len(found) >= MOST_LOSSES:
            continue
        step = _STEP.search(line)
        if step is None and line.endswith("\r"):
            continue
        number = next(filter(None, step.groups())) if step is not None else ""
        if math.isfinite(value := float(loss[1])):
            found.setdefault(f"step {number}" if number else f"line {len(found) + 1}", value)
    return tuple(found.items())


def changes_training(found: Observation, baseline: Observation, baselines: Sequence[Observation]) -> str:
    """How the training differs from the baseline's; empty if it does not."""
    own, wanted = found.samples_per_step, baseline.samples_per_step
    if wanted is not None and own is None:
        return "its samples a step are not known"
    if wanted is not None and own is not None and abs(own - wanted) > SAMPLES_TOLERANCE * wanted:
        return f"{own:g} samples a step, not {wanted:g}"
    return _departs(dict(found.losses), [dict(each.losses) for each in baselines])


def _departs(losses: Mapping[str, float], baselines: Sequence[Mapping[str, float]]) -> str:
    outside, compared, example = 0, 0, ""
    for step, loss in losses.items():
        values = [known[step] for known in baselines if step in known]
        if not values:
            continue
        compared += 1
        middle = median(values)
        allowed = max(LOSS_TOLERANCE * abs(middle), OWN_SPREAD * (max(values) - min(values)))
        if abs(loss - middle) > allowed:
            outside += 1
            example = example or f"loss {loss:g} at {step}, not {middle:g}"
    return example if compared >= FEWEST_LOSSES and 2 * outside > compared else ""
