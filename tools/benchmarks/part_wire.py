"""Gradients between hosts in fewer bytes, beside gloo and torch's own hooks: steps, sums, bytes; and what they learn.

A start of the run has `--wire`, and models for all contenders, which take turns (`contenders/trainings.py`): what a
script does under torchrun is what its models do with process groups of their own. The network cards of the lab's hosts
are limited by `tc`. For the accuracy, whole trainings with several seeds.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from ipexctl.addons.lab import lab_system
from ipexctl.text import format_count

from .figures import Interval, median, median_interval, ratios
from .harness import printed, say, spend
from .part_train import TORCH, TRAININGS
from .report import Goal, Report
from .rig import HERE, Rig, ipexctl, laboratory

MODES: Final = ("bf16", "int8")
HOOKS: Final = ("bf16 hook",)
CONTENDERS: Final = ("gloo", *HOOKS, "ours", "sum by gloo", "sum by ours")
LIMITS: Final = {
    "100 Mbit/s": "rate 100mbit burst 64kb latency 400ms",
    "1 Gbit/s": "rate 1gbit burst 256kb latency 100ms",
    "10 Gbit/s": "rate 10gbit burst 4mb latency 50ms",
}
SHARED: Final = "shared"
"""In place of a mode: `--allreduce shared`, which sends all bytes."""
STARTS: Final = 2
SHARED_AIMS: Final = {"step": 0.85, "bytes": 0.70}
SLOWEST, GIGABIT, FASTEST = LIMITS
HOSTS: Final = 4
SUM_AIMS: Final = {"bf16": 0.55, "int8": 0.32}
STEP_AIMS: Final = {"bf16": 0.59, "int8": 0.36}
"""Beside gloo."""
HOOK_AIMS: Final = {"bf16": 1.0, "int8": 0.59}
BYTES_AIMS: Final = {"bf16": 0.52, "int8": 0.28}
UNHARMED: Final = 1.11
ALONE: Final = ("--ppn", "1", "--omp", "1")
"""All hosts share the cores of this machine."""
WORKLOADS: Final = {"digits": "accuracy", "words": "bits for a byte", "trainer": "accuracy"}
SEEDS: Final = 5
PICTURE: Final = HERE.parents[1] / "docs/pictures/wire-losses.svg"


@dataclass(frozen=True, slots=True)
class Place:
    """Hosts, ranks on each, and the limit of their cards."""

    hosts: int
    ranks: int
    limit: str

    def __str__(self) -> str:
        return f"{self.hosts} hosts x {format_count(self.ranks, 'rank')}, {self.limit}"


PLACES: Final = (
    *(Place(2, 1, limit) for limit in LIMITS),
    Place(4, 1, GIGABIT),
    Place(2, 2, GIGABIT),
)
Turns = Sequence[Mapping[str, Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Found:
    """The turns of one place, by mode."""

    turns: Mapping[str, Turns]

    def beside(self, mode: str, ours: str, other: str, at: int = 0) -> Interval:
        """Ours by the other: 0 seconds, 1 bytes."""
        turns = self.turns[mode]
        return median_interval(ratios([turn[ours][at] for turn in turns], [turn[other][at] for turn in turns]))

    def median(self, mode: str, name: str, at: int = 0) -> float:
        return median([turn[name][at] for turn in self.turns[mode]])


def measure_steps(rig: Rig) -> Report:
    project = _project(rig, "wire")
    found = {}
    with laboratory(HOSTS, shared_home=True) as lab:
        shared = replace(rig, lab=lab)
        _install(shared, HOSTS)
        for place in PLACES:
            _limit(shared, LIMITS[place.limit])
            turns = {mode: _turns(shared, project, place, mode) for mode in MODES}
            found[place] = Found(turns)
    header = ("25 MB of gradients, ms a step", "gloo", *HOOKS, *(f"--wire {mode}" for mode in MODES), "MB sent")
    rows = tuple((str(place), *_cells(found[place])) for place in PLACES)
    note = "Ratios: to gloo, to the hook. MB that a host sends: with gloo, bf16, int8. All hosts share the cores."
    return Report(rig.runs, header, rows, tuple(_goals(found)), (note,))


def _cells(found: Found) -> list[str]:
    first = MODES[0]
    cells = [f"{found.median(first, 'gloo') * 1e3:.1f}"]
    cells += [f"{found.median(first, hook) * 1e3:.1f}" for hook in HOOKS]
    cells += [_cell(found, mode, "ours") for mode in MODES]
    sent = [found.median(first, "gloo", 1), *(found.median(mode, "ours", 1) for mode in MODES)]
    return [*cells, ", ".join(f"{size / 1e6:.1f}" for size in sent)]


def _cell(found: Found, mode: str, name: str) -> str:
    beside = ", ".join(f"{found.beside(mode, name, other).median:.2f}x" for other in ("gloo", *HOOKS))
    return f"{found.median(mode, name) * 1e3:.1f} ({beside})"


def _goals(found: Mapping[Place, Found]) -> Sequence[Goal]:
    two, four = found[Place(2, 1, GIGABIT)], found[Place(4, 1, GIGABIT)]
    fast = found[Place(2, 1, FASTEST)]
    goals = []
    for mode in MODES:
        total = two.beside(mode, "sum by ours", "sum by gloo")
        aim = SUM_AIMS[mode]
        goals.append(Goal(f"all-reduce, {mode}: ≤ {aim}x gloo", str(total), total.stays_below(aim)))
        for other, most in (("gloo", STEP_AIMS[mode]), ("bf16 hook", HOOK_AIMS[mode])):
            beside = two.beside(mode, "ours", other)
            goals.append(Goal(f"steps, {mode}: ≤ {most}x {other}", str(beside), beside.stays_below(most)))
        for hosts, of in ((2, two), (4, four)):
            sent, most = of.beside(mode, "ours", "gloo", 1), BYTES_AIMS[mode]
            goals.append(Goal(f"bytes, {hosts} hosts, {mode}: ≤ {most}x", str(sent), sent.stays_below(most)))
        beside = fast.beside(mode, "ours", "gloo")
        goals.append(Goal(f"{FASTEST}, {mode}: ≤ {UNHARMED}x gloo", str(beside), beside.stays_below(UNHARMED)))
    return goals


def _turns(rig: Rig, project: Path, place: Place, mode: str) -> Turns:
    say(f"wire: {place}, {mode}")
    asked = ("--allreduce", SHARED) if mode == SHARED else ("--omp", "1", "--wire", mode)
    where = (*rig.where(place.hosts), "--ppn", place.ranks, *asked, project / TRAININGS.name)
    names = ("gloo", "ours") if mode == SHARED else CONTENDERS
    steps = 1 if place.limit == SLOWEST else 3
    words = ("turns", *names, "--turns", rig.runs, "--steps", steps)
    return printed(ipexctl(mode, "run", "--plain", "--quiet", *where, *words), rig.env, "turn")


def _project(rig: Rig, name: str) -> Path:
    project = rig.scratch / name
    project.mkdir()
    shutil.copy(TRAININGS, project)
    return project


def _install(rig: Rig, hosts: int, *words: str) -> None:
    where = rig.where(hosts)
    say(f"wire: installing torch {TORCH} on the lab's hosts")
    spend(ipexctl("ipexctl install", "install", *where, "--stack", "torch", "--torch", TORCH, *words), rig.env)


def _limit(rig: Rig, limit: str) -> None:
    for host in rig.lab.hosts:
        lab_system.in_host(host, "tc qdisc del dev eth0 root 2>/dev/null || true")
        lab_system.in_host(host, f"tc qdisc add dev eth0 root tbf {limit}")


# Two hosts whose ranks add up in shared memory


def measure_shared(rig: Rig) -> Report:
    project, place = _project(rig, "shared"), Place(2, 2, GIGABIT)
    with laboratory(place.hosts, shared_home=True) as lab:
        shared = replace(rig, lab=lab)
        _install(shared, place.hosts)
        _limit(shared, LIMITS[place.limit])
        found = Found({SHARED: [turn for _ in range(STARTS) for turn in _turns(shared, project, place, SHARED)]})
    intervals = [found.beside(SHARED, "ours", "gloo", at) for at in (0, 1)]
    rows = [
        (title, *(f"{found.median(SHARED, name, at) * factor:.1f}" for at, factor in ((0, 1e3), (1, 1e-6))))
        for name, title in (("gloo", "gloo"), ("ours", "shared memory on each host"))
    ]
    rows.append(("ratio (interval)", *map(str, intervals)))
    goals = tuple(
        Goal(f"{what}: ≤ {aim}x gloo", str(beside), beside.stays_below(aim))
        for (what, aim), beside in zip(SHARED_AIMS.items(), intervals, strict=True)
    )
    ranks = format_count(place.hosts * place.ranks, "rank")
    note = f"{ranks} on {place.hosts} hosts, which share the cores of one machine; turns from {STARTS} starts."
    header = (f"25 MB of gradients, {place.limit}", "ms a step", "MB a step that a host sends")
    return Report(len(found.turns[SHARED]), header, tuple(rows), goals, (note,))


# What they learn


def measure_accuracy(rig: Rig) -> Report:
    """Whole trainings: their figures do not depend on what else the machine does."""
    project = _project(rig, "accuracy")
    found: dict[str, dict[str, list[Any]]] = {}
    with ExitStack() as stack:
        lab = stack.enter_context(laboratory(2, shared_home=True))
        shared = replace(rig, lab=lab)
        packages = ("scikit-learn", "transformers", "accelerate")
        _install(shared, 2, *(word for package in packages for word in ("--with", package)))
        for workload, mode, seed in product(WORKLOADS, ("fp32", *MODES), range(1, SEEDS + 1)):
            say(f"wire: accuracy of {workload}, {mode}, seed {seed}")
            call = ipexctl(mode, "run", "--plain", "--quiet", *shared.where(2), *ALONE, "--wire", mode)
            words = (str(project / TRAININGS.name), "accuracy", workload, "--seed", str(seed))
            trained = printed(replace(call, argv=(*call.argv, *words)), shared.env, "trained")
            found.setdefault(workload, {}).setdefault(mode, []).extend(trained)
    PICTURE.write_text(picture(found))
    return report_of_accuracy(found, MODES)


def report_of_accuracy(found: Mapping[str, Mapping[str, Sequence[Any]]], modes: Sequence[str], *notes: str) -> Report:
    """`found`: workload → mode, one of them fp32 → what was trained with each seed."""
    header = (f"mean of {SEEDS} seeds ± their spread", "fp32", *modes)
    rows = tuple(
        (f"{workload}, {unit}", *(_spread(found[workload][mode]) for mode in ("fp32", *modes)))
        for workload, unit in WORKLOADS.items()
    )
    return Report(SEEDS, header, rows, tuple(_learnt(found, modes)), notes)


def _metrics(trained: Sequence[Any]) -> list[float]:
    return [entry["metric"] for entry in trained]


def _spread(trained: Sequence[Any]) -> str:
    return f"{fmean(_metrics(trained)):.4f} ± {stdev(_metrics(trained)):.4f}"


def _learnt(found: Mapping[str, Mapping[str, Sequence[Any]]], modes: Sequence[str]) -> Sequence[Goal]:
    goals = []
    for workload, by_mode in found.items():
        plain = _metrics(by_mode["fp32"])
        for mode in modes:
            difference = fmean(_metrics(by_mode[mode])) - fmean(plain)
            aim = f"{workload}, {mode}: the mean is within the spread of fp32 ({stdev(plain):.4f})"
            goals.append(Goal(aim, f"{difference:+.4f}", abs(difference) <= stdev(plain)))
    return goals


_COLORS: Final = {"fp32": "#222222", "bf16": "#1f77b4", "int8": "#d95f02"}
_WIDTH, _HEIGHT, _GAP = 240, 170, 44


def picture(found: Mapping[str, Mapping[str, Sequence[Any]]]) -> str:
    """The losses of all workloads beside one another: a line is the mean of the seeds."""
    parts = []
    for column, (workload, by_mode) in enumerate(found.items()):
        losses = {mode: [entry["losses"] for entry in by_mode[mode]] for mode in by_mode}
        curves = {mode: [fmean(at) for at in zip(*lines, strict=True)] for mode, lines in losses.items()}
        most = max(max(curve) for curve in curves.values())
        left = _GAP + column * (_WIDTH + _GAP)
        parts.append(f'<text x="{left}" y="16">{workload}</text>')
        parts.append(f'<path class="axes" d="M{left} 24V{24 + _HEIGHT}H{left + _WIDTH}"/>')
        parts.append(f'<text class="small" x="{left - 4}" y="32" text-anchor="end">{most:.2g}</text>')
        parts.append(f'<text class="small" x="{left - 4}" y="{24 + _HEIGHT}" text-anchor="end">0</text>')
        for mode, curve in curves.items():
            points = " ".join(
                f"{left + _WIDTH * at / max(1, len(curve) - 1):.1f},{24 + _HEIGHT * (1 - loss / most):.1f}"
                for at, loss in enumerate(curve)
            )
            parts.append(f'<polyline points="{points}" stroke="{_COLORS[mode]}"/>')
    width, height = _GAP + len(found) * (_WIDTH + _GAP), _HEIGHT + 64
    for number, (mode, color) in enumerate(_COLORS.items()):
        parts.append(f'<text x="{_GAP + 80 * number}" y="{height - 10}" fill="{color}">{mode}</text>')
    style = (
        "text{font:13px sans-serif}.small{font-size:10px}polyline{fill:none;stroke-width:1.4}"
        ".axes{fill:none;stroke:#999}svg{background:#fff}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img">'
    return "\n".join([head, f"<style>{style}</style>", *parts, "</svg>"]) + "\n"
