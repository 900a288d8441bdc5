"""The all-reduce in shared memory beside gloo's: of one bucket, of steps and trainings on one host, and of two hosts.

Sizes and the two hosts are measured inside one run, in which both ways exist and take turns. Trainings are those of
`part_train`, whose launchers take turns.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ipexctl.extras.lab import system
from ipexctl.text import counted

from .figures import Interval, median, median_interval, ratio, ratios
from .harness import printed, say, spend
from .part_train import (
    BACKEND,
    BF16,
    DIGITS,
    FP32,
    SHARED,
    TORCH,
    TORCHRUN,
    TRAININGS,
    Speeds,
    Workload,
    prepare_place,
    trained,
)
from .report import Goal, Report
from .rig import Rig, ipexctl, laboratory, prepare

AIM_4MB, AIM_16MB, AIM_ALWAYS = 0.60, 0.45, 1.05
"""Of gloo's time."""
AIM_STEP, AIM_STEP_BACKEND, AIM_TRAINING, AIM_UNHARMED = 1.3, 1.25, 1.05, 0.98
AIM_BYTES, AIM_STEP_HOSTS = 0.70, 0.85
RANKS: Final = 2
HOSTS, RANKS_OF_HOST, STARTS = 2, 2, 2
"""Of the part with several hosts."""
LIMIT: Final = "tc qdisc add dev eth0 root tbf rate 1gbit burst 256kb latency 100ms"
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
    header = ("2 ranks, steps, tokens or images/s (shared memory is as fast)", *(t.title for t in COLUMNS))
    rows = tuple((name, *(_speed(speeds, name) for _, speeds in found)) for name in NAMES)
    goals = tuple(
        Goal(f"{training.title}: ≥ {aim}x {name}", str(beside), beside.reaches(aim))
        for training, speeds in found
        for name, aim in training.aims.items()
        for beside in [speeds.beside(name, SHARED)]
    )
    return Report(rig.runs, header, rows, goals)


def measure_hosts(rig: Rig) -> Report:
    project = rig.scratch / "allreduce-hosts"
    project.mkdir()
    shutil.copy(TRAININGS, project)
    turns: list[Any] = []
    with laboratory(HOSTS, shared_home=True) as lab:
        shared = replace(rig, lab=lab)
        where = shared.where(HOSTS)
        prepare(shared, "trust", *where)
        say(f"all-reduce: installing torch {TORCH} on the lab's hosts")
        spend(ipexctl("ipexctl install", "install", *where, "--stack", "torch", "--torch", TORCH), rig.env)
        for host in lab.hosts:
            system.in_host(host, LIMIT)
        options = ("--plain", "--quiet", *where, "--ppn", RANKS_OF_HOST, "--allreduce", "shared")
        call = ipexctl(SHARED, "run", *options, project / TRAININGS.name, "turns", "gloo", "ours")
        for number in range(STARTS):
            say(f"all-reduce: {HOSTS} hosts, start {number + 1} of {STARTS}")
            turns += printed(call, shared.env, "turn")
    gloo, ours = ([turn[name] for turn in turns] for name in ("gloo", "ours"))
    titles = ("ms a step", "MB a step that a host sends")
    intervals = [_beside(gloo, ours, at) for at in (0, 1)]
    rows = tuple(
        (name, *(f"{median([turn[at] for turn in found]) * factor:.1f}" for at, factor in ((0, 1e3), (1, 1e-6))))
        for name, found in (("gloo", gloo), ("shared memory on each host", ours))
    )
    rows = (*rows, ("ratio (interval)", *map(str, intervals)))
    goals = (
        Goal(f"step: ≤ {AIM_STEP_HOSTS}x gloo", str(intervals[0]), intervals[0].stays_below(AIM_STEP_HOSTS)),
        Goal(f"bytes: ≤ {AIM_BYTES}x gloo", str(intervals[1]), intervals[1].stays_below(AIM_BYTES)),
    )
    ranks = counted(HOSTS * RANKS_OF_HOST, "rank")
    note = f"{ranks} on {HOSTS} hosts, which share the cores of one machine; the turns of {STARTS} starts."
    return Report(len(turns), ("25 MB of gradients, 1 Gbit/s", *titles), rows, goals, (note,))


def _beside(gloo: Sequence[Any], ours: Sequence[Any], at: int) -> Interval:
    return median_interval(ratios([turn[at] for turn in ours], [turn[at] for turn in gloo]))


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
