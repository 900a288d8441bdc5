"""Judges the network of a run, apart from its ranks, as a slow one makes all of them wait. Pure.

In: rows of judged windows, and how the ranks wait. Out: `LinkFinding`s. The rules: a host loses segments if at least
LOST of those that it sends are sent again, in ROW windows in a row; the loss is on its own link or on that of a host to
which it sends, which retransmissions don't tell. The transfer is slow if no rank's own time explains a good part of
each step, the hosts move many bytes in a step, and these take longer than on a link of 1 Gbit/s; this is known only
where the own time of ranks is. No link is slow that did more in its busiest moment, and none is blamed where processes
wait for processors: threads that send and receive may be among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from ipexctl.node.run.own_time import ROW, own_time, waiting_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ipexctl.extras.slow.timeline import JudgedWindow
    from ipexctl.node.run.own_time import Waiting
    from ipexctl.node.run.rates import HostRates

LOST: Final = 0.005
SEGMENT: Final = 1448
"""Bytes of a TCP segment in a packet of 1500."""
FEWEST_RESENT: Final = 1.0
"""Segments a second."""
TRANSFER: Final = 0.3
"""The part of a step that no rank's own time explains."""
STEP_BYTES: Final = 1 << 20
"""Sent by each host in a step: less is a matter of round trips."""
SLOW_SPEED: Final = 1e9 / 8
"""Bytes a second."""
CROWDED: Final = 0.5
"""The part of the time in which some process of a host waits for a processor."""
Window = TypeVar("Window")
LinkKind = Literal["lost-segments", "slow-transfer"]


@dataclass(frozen=True, slots=True)
class LinkFinding:
    kind: LinkKind
    hosts: tuple[str, ...]
    """That lose segments; all that take part, for a slow transfer."""
    start: float
    end: float
    windows: int
    is_current: bool
    """Whether it is so in one of the last two windows."""
    transfer: float | None = None
    """The part of a step that is transfer and waiting for it."""
    resent: float | None = None
    """The part of the segments that is sent again."""
    bytes_per_s: float | None = None
    """While data is transferred, of the slowest host."""


def judge_network(rows: Sequence[Sequence[JudgedWindow]], waiting: Waiting) -> list[LinkFinding]:
    hosts = list(dict.fromkeys(host for row in rows for window in row for host in window.hosts))
    if len(hosts) < 2:
        return []
    found = []
    losing: set[int] = set()
    for host in hosts:
        for stretch in stretches(rows, partial(_is_losing, host)):
            losing.update(map(id, stretch))
            resent = fmean(resent_part(window.hosts[host]) for window in stretch)
            found.append(_finding("lost-segments", (host,), stretch, lasts(stretch, rows), waiting, resent=resent))
    if waiting != "spins":  # lost segments make transfers slow, too: that is one finding
        for stretch in stretches(rows, lambda window: id(window) not in losing and is_slow_transfer(window, waiting)):
            speed = fmean(transfer_speed(window, waiting) for window in stretch)
            lasting = lasts(stretch, rows)
            found.append(_finding("slow-transfer", tuple(hosts), stretch, lasting, waiting, speed=speed))
    return found


def stretches(rows: Iterable[Sequence[Window]], is_so: Callable[[Window], bool]) -> Iterator[list[Window]]:
    """The windows of each ROW or more in a row for which it is so; then one alone that is not ends nothing."""
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
    """Whether it is so still: one window may be below a threshold, as they vary, and the call itself is a load."""
    return any(stretch[-1] is window for window in rows[-1][-2:])


def _is_losing(host: str, window: JudgedWindow) -> bool:
    return loses(window.hosts.get(host))


def resent_part(rates: HostRates) -> float:
    sent = (rates.sent_per_s or 0.0) / SEGMENT
    return (rates.retransmits_per_s or 0.0) / sent if sent > 0 else 0.0


def loses(rates: HostRates | None) -> bool:
    if rates is None or (rates.retransmits_per_s or 0.0) < FEWEST_RESENT:
        return False
    return resent_part(rates) >= LOST


def transfer_part(window: JudgedWindow, waiting: Waiting) -> float | None:
    """The part of a step that is nobody's own time; None if the own time of some rank is not known."""
    if waiting in ("spins", "independent"):
        return None
    waiting = waiting_in(window.ranks.values(), waiting)
    totals = [own_time(rates, waiting).total for rates in window.ranks.values()]
    known = [total for total in totals if total is not None]
    return 1.0 - max(known) if known and len(known) == len(totals) else None


def transfer_speed(window: JudgedWindow, waiting: Waiting) -> float:
    """Bytes a second of the host that sends least, while it transfers; 0 if it is not known."""
    part = transfer_part(window, waiting)
    sent = [rates.sent_per_s for rates in window.hosts.values() if rates.sent_per_s is not None]
    return min(sent) / part if part and sent else 0.0


def is_slow_transfer(window: JudgedWindow, waiting: Waiting) -> bool:
    part, speed = transfer_part(window, waiting), transfer_speed(window, waiting)
    if part is None or part < TRANSFER or not 0 < speed < SLOW_SPEED:
        return False
    if any(
        (h.peak_sent_per_s or 0.0) >= SLOW_SPEED or (h.cpu_pressure or 0.0) >= CROWDED for h in window.hosts.values()
    ):
        return False
    step_bytes = speed * part * window.seconds / max(window.steps, 1e-9)
    return step_bytes >= STEP_BYTES


def _finding(
    kind: LinkKind,
    hosts: tuple[str, ...],
    stretch: Sequence[JudgedWindow],
    is_current: bool,
    waiting: Waiting,
    *,
    resent: float | None = None,
    speed: float | None = None,
) -> LinkFinding:
    parts = [part for window in stretch if (part := transfer_part(window, waiting)) is not None]
    return LinkFinding(
        kind,
        hosts,
        stretch[0].start,
        stretch[-1].end,
        len(stretch),
        is_current,
        median(parts) if parts else None,
        resent,
        speed,
    )
