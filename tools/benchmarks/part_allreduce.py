"""Collectives in shared memory beside gloo's on one host, alone and in whole steps; `part_wire` has two hosts.

They are measured inside one run, in which both ways exist and take turns.
"""

from __future__ import annotations

from typing import Any, Final

from .figures import Interval, compared, median, median_interval, ratio
from .harness import printed, say
from .part_train import TRAININGS, prepare_place
from .report import Goal, Report
from .rig import Rig, ipexctl

AIM_25MB, AIM_ALWAYS, AIM_STEP = 0.70, 1.05, 1.3
"""Of gloo's time; and how many times as fast as with gloo a step of FSDP2 with the smaller batch should be."""
RANKS: Final = 2
USUAL: Final = 25 << 20
"""Bytes of a bucket of DDP."""
KINDS: Final = ("FSDP2", "TP")
"""DDP has its hook in both turns."""


def measure_sizes(rig: Rig) -> Report:
    starts = _starts(rig, "sizes")
    rows: list[tuple[str, ...]] = []
    beside: dict[str, dict[int, Interval]] = {}
    for name in starts[0]:
        for size in starts[0][name]:
            pairs = [start[name][size] for start in starts]
            beside.setdefault(name, {})[int(size)] = _ratio(pairs)
    for size in beside["all_reduce"]:
        cells = [
            f"{_milliseconds(starts, name, size, at=1):.2f} ({compared(found[size])})" for name, found in beside.items()
        ]
        rows.append((_named(size), *cells))
    worst = {(name, size): found for name, sizes in beside.items() for size, found in sizes.items()}
    goals = (
        _worst(f"25 MB: ≤ {AIM_25MB}x gloo", {key: found for key, found in worst.items() if key[1] == USUAL}, AIM_25MB),
        _worst(f"any size: ≤ {AIM_ALWAYS}x gloo", worst, AIM_ALWAYS),
    )
    header = ("2 ranks, ms (shared memory / gloo)", *beside)
    return Report(rig.runs, header, tuple(rows), goals)


def measure_steps(rig: Rig) -> Report:
    rows: list[tuple[str, ...]] = []
    gains: dict[tuple[str, str], Interval] = {}
    for kind in KINDS:
        starts = _starts(rig, "steps", kind)
        for sequences in starts[0]:
            times = [[list(pair) for pair in start[sequences]] for start in starts]
            gloo = median([median([beside for beside, _ in pairs]) for pairs in times]) * 1e3
            found = gains[kind, sequences] = _gain(times)
            rows.append((f"{kind}, {sequences} sequences a rank", f"{gloo:.0f}", compared(found)))
    (least, found) = min(gains.items(), key=lambda row: row[1].median)
    first = next(iter(gains.values()))
    goals = (
        Goal(f"FSDP2, small batch: ≥ {AIM_STEP}x", str(first), first.median >= AIM_STEP),
        Goal("any step: ≥ 1x gloo", f"{found} with {least[0]}", found.median >= 1),
    )
    header = ("30 million parameters, 2 ranks", "gloo, ms a step", "with shared memory, times as fast")
    return Report(rig.runs, header, tuple(rows), goals)


def _starts(rig: Rig, *words: str) -> list[Any]:
    """Each start of the run is one observation."""
    place = prepare_place(rig)
    options = ("--plain", "--quiet", "--hosts", "localhost", "--home", place.home, "-n", RANKS, "--cwd", place.project)
    asked = ("--allreduce", "shared")
    call = ipexctl("ipexctl run --allreduce shared", "run", *options, *asked, place.project / TRAININGS.name, *words)
    found = []
    for number in range(rig.runs):
        say(f"all-reduce: {' '.join(words)}, start {number + 1} of {rig.runs}")
        (document,) = printed(call, rig.env, words[0])
        found.append(document)
    return found


def _ratio(starts: list[Any]) -> Interval:
    columns = [list(zip(*pairs, strict=True)) for pairs in starts]
    return median_interval([ratio(ours, gloo) for gloo, ours in columns])


def _gain(starts: list[Any]) -> Interval:
    columns = [list(zip(*pairs, strict=True)) for pairs in starts]
    return median_interval([ratio(gloo, ours) for gloo, ours in columns])


def _milliseconds(starts: list[Any], name: str, size: int, at: int) -> float:
    return median([median([pair[at] for pair in start[name][str(size)]]) for start in starts]) * 1e3


def _worst(aim: str, beside: dict[tuple[str, int], Interval], limit: float) -> Goal:
    name, size = max(beside, key=lambda key: beside[key].median)
    verdicts = {found.stays_below(limit) for found in beside.values()}
    met = False if False in verdicts else None if None in verdicts else True
    return Goal(aim, f"{beside[name, size]}, {name} of {_named(size)}", met)


def _named(size: int) -> str:
    return f"{size >> 20} MB" if size >> 20 else f"{size >> 10} KB"
