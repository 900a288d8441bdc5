"""The all-reduce of one bucket in shared memory beside gloo's on one host; `part_wire` has two hosts.

They are measured inside one run, in which both ways exist and take turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .figures import Interval, median, median_interval, ratio
from .harness import printed, say
from .part_train import TRAININGS, prepare_place
from .report import Goal, Report
from .rig import Rig, ipexctl

AIM_4MB, AIM_25MB, AIM_ALWAYS = 0.60, 0.45, 1.05
"""Of gloo's time."""
RANKS: Final = 2
USUAL: Final = 25 << 20
"""Bytes of a bucket of DDP."""


def measure_sizes(rig: Rig) -> Report:
    """Each start of the run is one observation of each size."""
    place = prepare_place(rig)
    options = ("--plain", "--quiet", "--hosts", "localhost", "--home", place.home, "-n", RANKS, "--cwd", place.project)
    call = ipexctl(
        "ipexctl run --allreduce shared",
        "run",
        *options,
        "--allreduce",
        "shared",
        place.project / TRAININGS.name,
        "sizes",
    )
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
    large = {size: found for size, found in beside.items() if size >= USUAL}
    goals = (
        Goal(f"4 MB: ≤ {AIM_4MB}x gloo", str(beside[4 << 20]), beside[4 << 20].stays_below(AIM_4MB)),
        _worst(f"from 25 MB: ≤ {AIM_25MB}x gloo", large, AIM_25MB),
        _worst(f"any size: ≤ {AIM_ALWAYS}x gloo", beside, AIM_ALWAYS),
    )
    header = ("all-reduce, 2 ranks, ms", "gloo", "shared memory", "shared memory / gloo (interval)")
    return Report(rig.runs, header, tuple(rows), goals)


def _worst(aim: str, beside: Mapping[int, Interval], limit: float) -> Goal:
    size = max(beside, key=lambda size: beside[size].median)
    verdicts = {found.stays_below(limit) for found in beside.values()}
    met = False if False in verdicts else None if None in verdicts else True
    return Goal(aim, f"{beside[size]} at {_named(size)}", met)


def _named(size: int) -> str:
    return f"{size >> 20} MB" if size >> 20 else f"{size >> 10} KB"
