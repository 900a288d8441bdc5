"""Finds for the status how long ranks wait for other hosts in a step, and how much faster `--wire` would be. Pure.

- The waiting share is known only with several hosts whose ranks sleep while they wait (`rates.py`).
- Advice needs the gradient bytes of a DDP model, because other traffic would not shrink. If a host sends fewer bytes, a
  communication hook of the script already shrinks them.
- Backward hides a part of the transfer. At the busiest moment's rate, a step's bytes take `transfer` seconds, of which
  ranks wait for a part. Fewer bytes shorten the visible part first; waiting beyond the transfer stays.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Mapping, NamedTuple

from ipexctl.node.common.records import NetworkCost, WireAdvice
from ipexctl.node.run.meter.slow_watch import MIN_STEPS

if TYPE_CHECKING:
    from ipexctl.node.run.meter.rates import HostRates, RankRates, Waiting

MOMENT = 0.05
"""Seconds between two samples of an interface (`host_notes.py`)."""
LONG_STEP = 4 * MOMENT
ADVISED = 0.2
FEWEST_BYTES = 1 << 20
"""Bytes per step. With fewer bytes, round trips dominate."""
WORTH = 1.1
"""Smallest speedup worth advising, as a ratio of step times."""
ADVICE, RATIO = "bf16", 0.5
"""The wire format that changes training least, and its bytes relative to fp32."""
ALL_SENT = 0.8
"""A host that sends less than this fraction of the gradients' bytes does not send them unchanged."""
BUSIEST = 1.5
"""A transfer takes at most this many times as long as at the busiest moment's rate."""
MOST_OPEN = 6
"""Windows that may be incomplete, because some ranks or hosts have not sent theirs."""


class _Window(NamedTuple):
    ranks: dict[int, RankRates]
    gradients: dict[int, float]
    hosts: dict[str, HostRates]


class NetworkWatch:
    def __init__(self, hosts: Mapping[int, str], waiting: Waiting, *, is_wire_possible: bool, shared: bool) -> None:
        """`hosts`: rank → host. `shared`: each host first sums its ranks' gradients."""
        self._hosts = hosts
        self._host_count = len(set(hosts.values()))
        self._is_on = self._host_count > 1 and waiting == "sleeps"
        self._can_advise = is_wire_possible
        self._senders = self._host_count if shared else len(hosts)
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget what was measured in the attempt before."""
        self._open: dict[int, _Window] = {}
        self._has_begun = False
        self._seconds = self._steps = self._waited = self._gradients = 0.0
        self._sent: dict[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._iface = ""

    def add(self, rank: int, number: int, rates: RankRates, seconds: float, gradients: float) -> None:
        """Take a rank's window. It counts once all ranks and hosts have sent theirs of this number."""
        if self._is_on:
            window = self._window(number)
            window.ranks[rank], window.gradients[rank] = rates, gradients
            self._take(number, window, seconds)

    def add_host(self, host: str, number: int, rates: HostRates, seconds: float, iface: str) -> None:
        """Take a host's window, which counts as a rank's does. `iface`: the host's network interface, or empty."""
        if self._is_on:
            self._iface = iface
            window = self._window(number)
            window.hosts[host] = rates
            self._take(number, window, seconds)

    def _window(self, number: int) -> _Window:
        if number not in self._open and len(self._open) > MOST_OPEN:
            del self._open[min(self._open)]
        return self._open.setdefault(number, _Window({}, {}, {}))

    def _take(self, number: int, window: _Window, seconds: float) -> None:
        if len(window.ranks) < len(self._hosts) or len(window.hosts) < self._host_count:
            return
        del self._open[number]
        steps = median(rates.steps_per_s for rates in window.ranks.values()) * seconds
        if not self._has_begun or steps <= 0:
            self._has_begun = self._has_begun or steps > 0
            return
        waits = [rates.collective_wait for rates in window.ranks.values()]
        known = [wait for wait in waits if wait is not None]
        if len(known) < len(waits):
            return
        self._seconds += seconds
        self._steps += steps
        self._waited += min(known) * seconds
        self._gradients = min(window.gradients.values())
        for host, rates in window.hosts.items():
            self._sent[host] = self._sent.get(host, 0.0) + (rates.sent_per_s or 0.0) * seconds
            self._peaks[host] = max(self._peaks.get(host, 0.0), rates.peak_sent_per_s or 0.0)

    @property
    def network(self) -> NetworkCost | None:
        """What waiting for other hosts costs; None if it can't be measured, or before MIN_STEPS steps were."""
        if self._steps < MIN_STEPS or not self._sent:
            return None
        step, share = self._seconds / self._steps, self._waited / self._seconds
        moved = max(self._sent.values()) / self._steps
        peak = min(self._peaks.values()) if step >= LONG_STEP else 0.0
        rate = peak or (moved / (share * step) if share > 0 else 0.0)
        advice = None
        if self._can_advise and share >= ADVISED and moved >= FEWEST_BYTES and self._gradients:
            remaining = remaining_bytes(self._gradients, self._senders, self._host_count, moved)
            faster = speedup(step, share, moved / peak if peak else 0.0, remaining)
            if faster >= WORTH and moved >= ALL_SENT * once_round(self._gradients, self._senders):
                advice = WireAdvice(ADVICE, round(faster, 2))
        return NetworkCost(round(share, 3), round(moved), round(rate), self._iface, advice)


def once_round(gradients: float, senders: int) -> float:
    """Return the bytes that a host sends in a ring all-reduce of so many bytes of gradients among so many senders."""
    return 2 * (senders - 1) / senders * gradients


def remaining_bytes(gradients: float, senders: int, hosts: int, moved: float) -> float:
    """Return which fraction of a host's bytes per step `--wire` would leave: a ring of the hosts takes the place of a
    ring of all senders, with fewer bytes for each number.

    Without no_sync, each backward pass of a step sends the gradients.
    """
    once, then = once_round(gradients, senders), once_round(gradients, hosts)
    passes = max(1, int(moved / once + 0.1))
    return max(0.0, 1.0 - (min(moved, passes * once) - min(moved, passes * then) * RATIO) / moved)


def speedup(step: float, share: float, transfer: float, remaining: float) -> float:
    """Return how many times as fast a step would be that sends only the fraction `remaining` of its bytes.

    `transfer`: seconds to send all bytes at the busiest moment's rate; 0 if unknown.
    """
    waited = share * step
    explained = min(waited, BUSIEST * transfer) if transfer else waited
    total = min(max(explained, transfer), step)
    hidden = total - explained
    return step / (step - explained + max(0.0, total * remaining - hidden))
