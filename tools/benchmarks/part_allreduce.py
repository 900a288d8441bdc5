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
    BF16,
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
from .report import Goal, Report
from .rig import Rig, ipexctl

AIM_4MB, AIM_16MB, AIM_ALWAYS = 0.60, 0.45, 1.05
"""Of gloo's time."""
AIM_STEP, AIM_STEP_BACKEND, AIM_TRAINING, AIM_UNHARMED = 1.3, 1.25, 1.05, 0.98
RANKS: Final = 2
NAMES: Final = (SHARED, BACKEND, TORCHRUN)
EXCHANGE: Final = Workload(TRAININGS, "steps", 1, 10, 1.5, ("gradients",), 1.5)


def _short(workload: Workload) -> Workload:
    """Of the transformers: all columns have to fit into minutes in which nothing else runs."""
    return replace(workload, warm_up=2, turn=3.0, steady=3.0)


@dataclass(frozen=True, slots=True)
class Training:
    """A column of the table of trainings."""

    title: str
    workload: Workload
    aims: Mapping[str, float]
    """Contender → how many times as fast shared memory is to be."""


COLUMNS: Final = (
    Training("25 MB of gradients", EXCHANGE, {TORCHRUN: AIM_STEP, BACKEND: AIM_STEP_BACKEND}),
    Training("transformer, fp32", _short(FP32), {TORCHRUN: AIM_TRAINING}),
    Training("transformer, bf16", _short(BF16), {TORCHRUN: AIM_TRAINING}),
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
    rows, beside = [], {}
    for size in starts[0]:
        columns = [list(zip(*start[size], strict=True)) for start in starts]
        beside[size] = median_interval([ratio(ours, gloo) for gloo, ours in columns])
        gloo, ours = (median([median(column[at]) for column in columns]) * 1e3 for at in (0, 1))
        rows.append((_named(size), f"{gloo:.2f}", f"{ours:.2f}", str(beside[size])))
    large = {size: found for size, found in beside.items() if size >= 16 << 20}
    goals = (
        Goal(f"4 MB: ≤ {AIM_4MB}x gloo", str(beside[4 << 20]), beside[4 << 20].stays_below(AIM_4MB)),
        _worst(f"from 16 MB: ≤ {AIM_16MB}x gloo", large, AIM_16MB),
        _worst(f"any size: ≤ {AIM_ALWAYS}x gloo", beside, AIM_ALWAYS),
    )
    return Report(
        rig.runs, ("all-reduce, 2 ranks, ms", "gloo", "shared memory", "ratio (interval)"), tuple(rows), goals
    )


def measure_trainings(rig: Rig) -> Report:
    place = prepare_place(rig)
    found = [
        (training, trained(rig, place, training.workload, RANKS, rig.runs, NAMES, share_rounds=0))
        for training in COLUMNS
    ]
    header = ("2 ranks, steps, tokens or images/s (shared memory relative to this row)", *(t.title for t in COLUMNS))
    rows = tuple((name, *(_speed(speeds, name) for _, speeds in found)) for name in NAMES)
    goals = tuple(
        Goal(f"{training.title}: ≥ {aim}x {name}", str(beside), beside.reaches(aim))
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
