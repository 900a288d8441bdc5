"""Judges the network of a run apart from its ranks, because a slow network makes all of them wait. Pure.

The transfer is slow if no rank's own time explains a good part of each step, the hosts move many bytes in a step, and
these take longer than on a link of 1 Gbit/s; the ranks' own time must be known. A link that was faster in its busiest
moment is not slow. No link is blamed if ranks wait for processors or read memory from a disk: threads that send and
receive may do so, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Final, TypeVar

from ipexctl.extras.slow.causes import FAULTS
from ipexctl.node.run.slow_watch import ROW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ipexctl.extras.slow.timeline import JudgedWindow

TRANSFER: Final = 0.3
"""The part of a step that no rank's own time explains."""
STEP_BYTES: Final = 1 << 20
"""Sent by each host in a step; with less, round trips dominate."""
SLOW_SPEED: Final = 1e9 / 8
"""Bytes per second."""
CROWDED: Final = 0.25
"""The part of the time in which a rank's threads wait for a processor."""
Window = TypeVar("Window")


@dataclass(frozen=True, slots=True)
class LinkFinding:
    hosts: tuple[str, ...]
    start: float
    end: float
    windows: int
    is_current: bool
    """True if it is so in one of the last two windows."""
    transfer: float
    """The part of a step that is transfer and waiting for it."""
    bytes_per_s: float
    """While data is transferred, on the slowest host."""


def judge_network(rows: Sequence[Sequence[JudgedWindow]]) -> list[LinkFinding]:
    hosts = tuple(dict.fromkeys(host for row in rows for window in row for host in window.hosts))
    if len(hosts) < 2:
        return []
    return [
        LinkFinding(
            hosts,
            stretch[0].start,
            stretch[-1].end,
            len(stretch),
            lasts(stretch, rows),
            median(transfer_part(window) or 0.0 for window in stretch),
            fmean(map(transfer_speed, stretch)),
        )
        for stretch in stretches(rows, is_slow_transfer)
    ]


def stretches(rows: Iterable[Sequence[Window]], is_so: Callable[[Window], bool]) -> Iterator[list[Window]]:
    """Stretches of at least ROW windows in a row for which `is_so`; after these, a single other window is skipped."""
    for row in rows:
        found: list[Window] = []
        missed = 0
        for window in [*row, None]:
            if window is not None and is_so(window):
                found.append(window)
                missed = 0
                continue
            missed += 1
            if window is not None and missed == 1 and len(found) >= ROW:
                continue
            if len(found) >= ROW:
                yield found
            found, missed = [], 0


def lasts(stretch: Sequence[Window], rows: Sequence[Sequence[Window]]) -> bool:
    """True if it is still so: one window may be below a threshold, because they vary and the call itself is a load."""
    return any(stretch[-1] is window for window in rows[-1][-2:])


def transfer_part(window: JudgedWindow) -> float | None:
    """The part of a step that is nobody's own time; None if some rank's wait is unknown."""
    waits = [rates.collective_wait for rates in window.ranks.values()]
    known = [wait for wait in waits if wait is not None]
    return min(known) if known and len(known) == len(waits) else None


def transfer_speed(window: JudgedWindow) -> float:
    """Bytes per second of the host that sends least, while it transfers; 0 if unknown."""
    part = transfer_part(window)
    sent = [rates.sent_per_s for rates in window.hosts.values() if rates.sent_per_s is not None]
    return min(sent) / part if part and sent else 0.0


def is_slow_transfer(window: JudgedWindow) -> bool:
    part, speed = transfer_part(window), transfer_speed(window)
    if part is None or part < TRANSFER or not 0 < speed < SLOW_SPEED:
        return False
    if any((rates.peak_sent_per_s or 0.0) >= SLOW_SPEED for rates in window.hosts.values()):
        return False
    if any((rates.queue or 0.0) >= CROWDED or (rates.faults_per_s or 0.0) >= FAULTS for rates in window.ranks.values()):
        return False
    return speed * part * window.seconds / max(window.steps, 1e-9) >= STEP_BYTES
