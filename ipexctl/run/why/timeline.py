"""Puts the windows of all ranks and hosts on one clock, and joins them until each has enough steps. Pure. A row of
`TrainingWindow`s ends where the ranks are unknown, as at a restart. A window has at least MIN_STEPS steps of the median
rank, so that one long step decides nothing. The window in which steps begin has imports and compilation and is left
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Protocol, TypeVar

from ipexctl.node.run.meter.rates import HostRates, RankRates, merge
from ipexctl.node.run.meter.slow_watch import MIN_STEPS
from ipexctl.node.run.meter.window_file import HostWindows, RankWindows

LATE: Final = 3
"""A rank that still runs may be this many windows late."""
RARE_STEPS: Final = 3.0
"""Usual steps per window below which a training window may have no step."""
Rates = TypeVar("Rates", RankRates, HostRates)
RatesOut = TypeVar("RatesOut", covariant=True)


@dataclass(frozen=True, slots=True)
class TrainingWindow:
    """Some seconds of training, with the mean figures of each rank and host known in that time."""

    start: float
    """Seconds since the epoch, by node0's clock."""
    seconds: float
    """Seconds of training, without the windows without a step that lie between."""
    steps: float
    ranks: Mapping[int, RankRates] = field(hash=False)
    hosts: Mapping[str, HostRates] = field(default_factory=dict, hash=False)
    end: float = 0.0


def training_rows(ranks: Mapping[int, RankWindows], hosts: Mapping[str, HostWindows]) -> list[list[TrainingWindow]]:
    """Windows that can be compared with each other, in rows without a gap."""
    rows = [list(_joined(row)) for row in _rows(_slots(ranks, hosts))]
    return [row for row in rows if row]


def _slots(ranks: Mapping[int, RankWindows], hosts: Mapping[str, HostWindows]) -> Iterator[TrainingWindow]:
    known = [record for record in ranks.values() if record.windows]
    if not known:
        return
    seconds = max(record.seconds for record in known)
    start = max(record.started for record in known)
    ends = [record.started + record.seconds * len(record.windows) for record in known]
    # In a live run, the newest windows of some ranks have not arrived: a slot without these ranks would compare the
    # others.
    end = min(end for end in ends if end >= max(ends) - LATE * seconds)
    for number in range(int((end - start) / seconds + 0.5)):
        at = start + number * seconds
        there = dict(_at(ranks, at, seconds))
        steps = median(rates.steps_per_s for rates in there.values()) * seconds if there else 0.0
        yield TrainingWindow(at, seconds, steps, there, dict(_at(hosts, at, seconds)), at + seconds)


class _Record(Protocol[RatesOut]):
    @property
    def started(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def windows(self) -> Sequence[RatesOut | None]: ...


def _at(records: Mapping[Any, _Record[Rates]], at: float, seconds: float) -> Iterator[tuple[Any, Rates]]:
    """The rates of each record in the window that covers most of these seconds."""
    for key, record in records.items():
        place = int((at + seconds / 2 - record.started) // record.seconds)
        rates = record.windows[place] if 0 <= place < len(record.windows) else None
        if rates is not None:
            yield key, rates


def _rows(slots: Iterable[TrainingWindow]) -> Iterator[list[TrainingWindow]]:
    """Windows with steps, in rows; each row begins after the window in which steps began."""
    row: list[TrainingWindow] = []
    for slot in slots:
        if slot.ranks:
            row.append(slot)
        elif row:
            yield _training(row)
            row = []
    yield _training(row)


def _training(row: Sequence[TrainingWindow]) -> list[TrainingWindow]:
    steps = [slot.steps for slot in row if slot.steps > 0]
    if not steps:
        return []
    begun = (number for number, slot in enumerate(row) if all(rates.steps_per_s > 0 for rates in slot.ranks.values()))
    first = next(begun, len(row))  # by then, the last rank to begin has also imported its modules
    last = max(number for number, slot in enumerate(row) if slot.steps > 0)
    is_rare = median(steps) < RARE_STEPS
    return [slot for slot in row[first + 1 : last + 1] if slot.steps > 0 or is_rare]


def _joined(row: Iterable[TrainingWindow]) -> Iterator[TrainingWindow]:
    parts: list[TrainingWindow] = []
    for slot in row:
        parts.append(slot)
        steps = sum(part.steps for part in parts)
        if steps >= MIN_STEPS - 1e-6:
            ranks = mean_rates([part.ranks for part in parts])
            hosts = mean_rates([part.hosts for part in parts])
            yield TrainingWindow(parts[0].start, sum(part.seconds for part in parts), steps, ranks, hosts, slot.end)
            parts = []


def mean_rates(parts: Sequence[Mapping[Any, Rates]]) -> dict[Any, Rates]:
    """Return key → mean of its rates, for keys that each part has."""
    return {key: merge([part[key] for part in parts]) for key in parts[0] if all(key in part for part in parts)}
