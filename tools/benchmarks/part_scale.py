"""The cost of many hosts for commands; `part_scale_run.py` has that of runs.

Processor time is that of the control machine's process and its children; memory and open files are those of the
process. A line through the figures gives the slope a host.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipexctl.text import format_count

from .figures import fit_line, median
from .harness import Failed, good_end_of, say
from .processes import Usage
from .report import Goal, Report
from .rig import Rig, all_well, ipexctl, write_project

EXEC, DOCTOR, NETWORK, SYNC = "exec -- true", "doctor --no-network", "doctor", "sync"
CHECK: Final = "doctor's network check"
AIM_HOSTS: Final = 64
AIMS: Final = {EXEC: 1.0, DOCTOR: 2.0, CHECK: 2.0}
"""Seconds."""
AIM_CPU: Final = 8.0
"""Milliseconds on the control machine for each of up to AIM_HOSTS hosts."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One call."""

    wall: float
    cpu: float | None = None
    """Seconds."""
    size: float | None = None
    """MB at most."""
    files: float | None = None


Costs = dict[str, dict[int, Cost]]
"""Command → number of hosts → the medians."""


def measure(rig: Rig) -> Report:
    found: dict[str, dict[int, list[Cost]]] = defaultdict(lambda: defaultdict(list))
    projects = (write_project(rig.scratch / f"scale{number}") for number in itertools.count())
    list(_commands(rig, next(projects), min(rig.counts)))  # unmeasured: bytecode is compiled
    for count in rig.counts:
        for _ in range(rig.runs):
            for name, cost in _commands(rig, next(projects), count):
                found[name][count].append(cost)
    costs = {name: {count: _median(each) for count, each in by_count.items()} for name, by_count in found.items()}
    return _report(rig.runs, costs)


def _commands(rig: Rig, project: Path, count: int) -> Iterable[tuple[str, Cost]]:
    """Each command on hosts that have nothing of ipexctl; the project is new on the control machine, too."""
    say(f"scale: {format_count(count, 'host')}")
    all_well(rig.on_hosts("rm -rf ~/.ipexctl", count), "clearing up")
    where = rig.where(count)
    calls = {
        EXEC: ("exec", *where, "--", "true"),
        DOCTOR: ("doctor", *where, "--no-network"),
        NETWORK: ("doctor", *where),
        CHECK: ("doctor", *where, "--json"),  # the time of the check is in this document alone
        SYNC: ("sync", *where, project),
    }
    for name, words in calls.items():
        if name == CHECK and count == 1:
            continue
        usage = Usage()
        spent, output = good_end_of(ipexctl(name, *words), rig.env, usage.update)
        say(f"  {name}: {spent.wall:.2f} s, {spent.cpu:.2f} s of CPU, {usage}")
        if name != CHECK:
            yield name, Cost(spent.wall, spent.cpu, usage.size, usage.files)
            continue
        seconds = json.loads(output)["network_seconds"]
        if not isinstance(seconds, float):
            raise Failed(f"doctor did not check the network of {count} hosts")
        yield CHECK, Cost(seconds)


def _median(costs: Sequence[Cost]) -> Cost:
    def middle(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return median(known) if known else None

    return Cost(
        median([cost.wall for cost in costs]),
        middle([cost.cpu for cost in costs]),
        middle([cost.size for cost in costs]),
        middle([cost.files for cost in costs]),
    )


def _values(costs: Costs, name: str, kind: str) -> dict[int, float]:
    """Number of hosts → that figure of the command, where it was measured."""
    found = {count: getattr(cost, kind) for count, cost in costs.get(name, {}).items()}
    return {count: value for count, value in found.items() if value is not None}


def _report(runs: int, costs: Costs) -> Report:
    counts = sorted({count for by_count in costs.values() for count in by_count})
    header = ("hosts", *(str(count) for count in counts), "each more")
    rows = []
    for name in costs:
        for kind, unit in (("wall", "s"), ("cpu", "CPU s")):
            values = _values(costs, name, kind)
            if not values:
                continue
            line = fit_line(values)
            cells = (f"{values[count]:.2f}" if count in values else "" for count in counts)
            rows.append((f"{name}: {unit}", *cells, f"{1000 * line.slope:.1f} ms"))
    return Report(runs, header, tuple(rows), _goals(costs), (_largest(costs),))


def _largest(costs: Costs) -> str:
    """The most memory and open files of one program."""
    parts = []
    for kind, unit in (("size", "MB"), ("files", "open files")):
        found = [(value, count, name) for name in costs for count, value in _values(costs, name, kind).items()]
        value, count, name = max(found)
        parts.append(f"{value:.0f} {unit} (`{name}`, {count} hosts)")
    return f"At most {' and '.join(parts)}."


def _goals(costs: Costs) -> tuple[Goal, ...]:
    goals = []
    for name, aim in AIMS.items():
        reached = _values(costs, name, "wall").get(AIM_HOSTS)
        if reached is not None:
            goals.append(Goal(f"{name} on {AIM_HOSTS} hosts in ≤ {aim:g} s", f"{reached:.2f} s", reached <= aim))
    slopes = {}
    for name in (EXEC, DOCTOR, NETWORK, SYNC):
        seconds = {count: cpu for count, cpu in _values(costs, name, "cpu").items() if count <= AIM_HOSTS}
        slopes[name] = 1000 * fit_line(seconds).slope
    worst = max(slopes, key=lambda name: slopes[name])
    aim_of_cpu = f"CPU of the control machine ≤ {AIM_CPU:g} ms for each of up to {AIM_HOSTS} hosts"
    return (
        *goals,
        Goal(aim_of_cpu, f"{slopes[worst]:.1f} ms, {worst}", slopes[worst] <= AIM_CPU),
    )
