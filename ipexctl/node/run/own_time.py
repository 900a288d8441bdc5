"""A rank's own time: the part of a step that is not spent in collectives, where the ranks wait for the slowest. Pure.

In: the figures of a rank in a window, and how its ranks wait for one another. Out: `OwnTime`, in parts of a step; wall
time says nothing, as it is equal on all ranks. How it is known depends on what waits:

- `sleeps`: a rank that waits under gloo, or for another host, sleeps. Its own time is what its main thread and the
  thread of backward were on a processor or in the run queue, and what it waited for data or a disk without a processor.
- `shared`: on one host, the all-reduce in shared memory measures its waiting. The rest is own time.
- `spins`: oneCCL and MPI wait on the processor. Only the run queue and the wait for data are known to be own time, so
  that more work in one rank and a slow processor stay unseen.
- `independent`: ranks without a process group wait for nobody.

Where a rank's own threads of gloo share its cores, its main thread stands in the queue behind them while they transfer.
That is a part of the collective, and differs by a few percent between ranks of equal speed, as one receives more than
another. They run half of their time while the main thread is ready (measured: 0.45 to 0.53 with one core for a rank),
so BEHIND_TRANSFER of it, shared by the rank's cores, is left out of its queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Collection, Literal, NamedTuple

if TYPE_CHECKING:
    from ipexctl.node.run.rates import RankRates

MORE_OWN = 0.05
"""Of a step: the own time above the median of the other ranks from which a rank is slow."""
MIN_STEPS = 30
"""Of a judged window."""
ROW = 3
"""Judged windows in a row in which it must be so."""
Waiting = Literal["sleeps", "shared", "spins", "independent"]
BEHIND_TRANSFER = 0.5
"""Of the time for which gloo's threads run on the only core of a rank: its main thread is ready then, too."""


class OwnTime(NamedTuple):
    """Parts of a step, 0 to 1; None if it is not known."""

    total: float | None
    cpu: float | None = None
    """On a processor."""
    queue: float | None = None
    """Ready to run, without a processor."""
    data: float | None = None
    """In the DataLoader, on a processor or not."""
    disk: float | None = None
    """Delayed by the input and output of a disk."""


def waiting_of(backend: str, allreduce: str, hosts: int) -> Waiting:
    """How the ranks of a plan wait; one with an unknown backend may spin."""
    if backend == "none":
        return "independent"
    if backend != "gloo":
        return "spins"
    return "shared" if allreduce == "shared" and hosts == 1 else "sleeps"


def waiting_in(ranks: Collection[RankRates], waiting: Waiting) -> Waiting:
    """How the ranks waited in a window: they may have refused the shared memory of the plan, and wait under gloo."""
    measured = any(rates.reduce_wait for rates in ranks)
    return waiting if waiting != "shared" or measured else "sleeps"


def own_time(rates: RankRates, waiting: Waiting) -> OwnTime:
    cpu = _both(rates.main_cpu, rates.backward_cpu)
    queue = _without_transfer(rates, _both(rates.main_queue, rates.backward_queue))
    data, disk = rates.data_wait, rates.io_wait
    busy = (0.0 if waiting == "spins" else cpu or 0.0) + (queue or 0.0)
    # Data that is loaded in the main thread itself is on the processor, too, and counts once.
    blocked = max(min(data or 0.0, 1.0 - min(1.0, busy)), disk or 0.0)
    total: float | None = min(1.0, busy + blocked)
    if waiting == "shared" and rates.reduce_wait is not None:
        total = 1.0 - rates.reduce_wait
    elif (queue is None and data is None) if waiting == "spins" else (cpu is None or queue is None):
        total = None
    return OwnTime(total, cpu, queue, data, disk)


def _without_transfer(rates: RankRates, queue: float | None) -> float | None:
    """The queue of a rank without that behind its own threads of gloo."""
    if queue is None or rates.transfer_cpu is None:
        return queue
    return max(0.0, queue - BEHIND_TRANSFER * rates.transfer_cpu / max(1.0, rates.cores or 0.0))


def _both(main: float | None, backward: float | None) -> float | None:
    return None if main is None else min(1.0, main + (backward or 0.0))
