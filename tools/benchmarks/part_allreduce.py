"""The all-reduce in shared memory beside gloo's on one host: of one bucket, of steps and of trainings.

Sizes are measured inside one run, in which both ways exist and take turns. Trainings are those of `part_train`, whose
launchers take turns. `part_wire` has two hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from .figures import Interval, median, median_interval, ratio
from .harness import printed, say
from .part_train import (
    BACKEND,
    DIGITS,
    FP32,
    SHARED,
    TORCHRUN,
    TRAININGS,
    Speeds,
    Workload,
    prepare_place,
    trained,
)
from .report import Goal, Headline, Report
from .rig import Rig, ipexctl

AIM_4MB, AIM_25MB, AIM_ALWAYS = 0.60, 0.45, 1.05
"""Of gloo's time."""
AIM_STEP, AIM_STEP_BACKEND, AIM_TRAINING, AIM_UNHARMED = 0.77, 0.8, 0.95, 1.02
RANKS: Final = 2
USUAL: Final = 25 << 20
"""Bytes of a bucket of DDP."""
NAMES: Final = (SHARED, BACKEND, TORCHRUN)
EXCHANGE: Final = Workload(TRAININGS, "steps", 1, 10, 1.5, ("gradients",), 1.5)
BLOCKS: Final = replace(FP32, warm_up=2, turn=3.0, steady=3.0)


@dataclass(frozen=True, slots=True)
class Training:
    """A column of the table of trainings."""

    title: str
    workload: Workload
    aims: Mapping[str, float]
    """Contender → the part of its time that a step with shared memory is to take at most."""


COLUMNS: Final = (
    Training("25 MB of gradients", EXCHANGE, {TORCHRUN: AIM_STEP, BACKEND: AIM_STEP_BACKEND}),
    Training("transformer, fp32", BLOCKS, {TORCHRUN: AIM_TRAINING}),
    Training("digits", DIGITS, {TORCHRUN: AIM_UNHARMED, BACKEND: AIM_UNHARMED}),
)


def measure_sizes(rig: Rig) -> Report:
    """Each start of the run is one observation of each size."""
    place = prepare_place(rig)
    options = ("--plain", "--quiet", "--hosts", "localhost", "--home", place.home, "-n", RANKS, "--cwd", place.project)
    call = ipexctl(SHARED, "run", *options, "--allreduce", "shared", place.project / TRAININGS.name, "sizes")
    starts: list[dict[int, list[list[float]]]] = []
    for number in range(rig.runs):
        say(f"all-reduce: sizes, start {number + 1} of {rig.runs}")
        (found,) = printed(call, rig.env, "sizes")
        starts.append({int(size): pairs for size, pairs in found.items()})
    rows, beside, headlines = [], {}, []
    for size in starts[0]:
        columns = [list(zip(*start[size], strict=True)) for start in starts]
        beside[size] = median_interval([ratio(ours, gloo) for gloo, ours in columns])
        gloo, ours = (median([median(column[at]) for column in columns]) * 1e3 for at in (0, 1))
        rows.append((_named(size), f"{gloo:.2f}", f"{ours:.2f}", str(beside[size])))
        if size == USUAL:
            figures = (f"{ours:.1f} ms", f"{gloo:.1f} ms", "gloo", f"{beside[size].median:.2f}x")
            headlines.append(Headline(f"all-reduce of {_named(size)}, 2 ranks of a host", *figures))
    large = {size: found for size, found in beside.items() if size >= USUAL}
    goals = (
        Goal(f"4 MB: ≤ {AIM_4MB}x gloo", str(beside[4 << 20]), beside[4 << 20].stays_below(AIM_4MB)),
        _worst(f"from 25 MB: ≤ {AIM_25MB}x gloo", large, AIM_25MB),
        _worst(f"any size: ≤ {AIM_ALWAYS}x gloo", beside, AIM_ALWAYS),
    )
    header = ("all-reduce, 2 ranks, ms", "gloo", "shared memory", "shared memory / gloo (interval)")
    return Report(rig.runs, header, tuple(rows), goals, (), tuple(headlines))


def measure_trainings(rig: Rig) -> Report:
    place = prepare_place(rig)
    found = [
        (training, trained(rig, place, training.workload, RANKS, rig.runs, NAMES, share_rounds=0))
        for training in COLUMNS
    ]
    unit = "2 ranks, steps, tokens or images/s (time of a step with shared memory / this one's)"
    header = (unit, *(training.title for training in COLUMNS))
    rows = tuple((name, *(_speed(speeds, name) for _, speeds in found)) for name in NAMES)
    goals = tuple(
        Goal(f"{training.title}: ≤ {aim}x {name}", str(beside), beside.stays_below(aim))
        for training, speeds in found
        for name, aim in training.aims.items()
        for beside in [speeds.beside(name, SHARED)]
    )
    return Report(rig.runs, header, rows, goals)


def _worst(aim: str, beside: Mapping[int, Interval], limit: float) -> Goal:
    size = max(beside, key=lambda size: beside[size].median)
    verdicts = {found.stays_below(limit) for found in beside.values()}
    met = False if False in verdicts else None if None in verdicts else True
    return Goal(aim, f"{beside[size]} at {_named(size)}", met)


def _named(size: int) -> str:
    return f"{size >> 20} MB" if size >> 20 else f"{size >> 10} KB"


def _speed(speeds: Speeds, name: str) -> str:
    speed = f"{speeds.median(name):.1f}"
    return speed if name == SHARED else f"{speed} ({speeds.beside(name, SHARED)})"
