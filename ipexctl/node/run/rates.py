"""The figures of a rank and of a host in a window. Pure. None means unknown, not zero.

A rank's own time is the part of a step in which it does not wait for other ranks; wall time says nothing because
all-reduce makes it equal on all ranks. What is known of the wait depends on how ranks wait:

- `sleeps`: under gloo, or for another host. A rank waits while its threads are neither on a processor, nor in the run
  queue, nor waiting for data.
- `shared`: on one host, the all-reduce in shared memory measures its waiting.
- `spins`: oneCCL and MPI wait on the processor. Only the run queue and the wait for data are known to be own time, so
  more work in one rank or a slow processor stays unseen.
- `independent`: ranks without a process group wait for nobody.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Sequence, TypeVar

Rates = TypeVar("Rates", bound="RankRates | HostRates")
Waiting = Literal["sleeps", "shared", "spins", "independent"]


class RankRates(NamedTuple):
    steps_per_s: float = 0.0
    samples_per_s: float | None = None
    data_wait: float | None = None
    """The part of the steps' time in which the rank waited for its DataLoader."""
    by_metric: bool = False
    """The samples are from the script's output."""
    rss: float | None = None
    """Bytes of its processes."""
    cpu: float | None = None
    """The part of the time in which its stepping thread and those of backward were on a processor."""
    queue: float | None = None
    """The part in which these could run while the processor was taken, except by its own gloo threads."""
    collective_wait: float | None = None
    """The part in which it waited for other ranks; None if unknown, as where ranks spin."""
    faults_per_s: float | None = None
    """Pages read from a disk."""

    @property
    def own_time(self) -> float | None:
        """In parts of a step."""
        if self.collective_wait is not None:
            return 1.0 - self.collective_wait
        known = [part for part in (self.queue, self.data_wait) if part is not None]
        return min(1.0, sum(known)) if known else None


class HostRates(NamedTuple):
    sent_per_s: float | None = None
    """Bytes over the run's interface; if the run names none, over all but the loopback."""
    peak_sent_per_s: float | None = None
    """Bytes over the run's interface, in the busiest sampled moment."""
    mhz: float | None = None
    """Mean over some of the ranks' processors."""


def waiting_of(backend: str, allreduce: str, hosts: int) -> Waiting:
    """How the ranks of a plan wait; with an unknown backend they may spin."""
    if backend == "none":
        return "independent"
    if backend != "gloo":
        return "spins"
    return "shared" if allreduce == "shared" and hosts == 1 else "sleeps"


def merge(windows: Sequence[Rates]) -> Rates:
    """One window for several of the same length: the means of known figures."""
    if len(windows) == 1:
        return windows[0]
    return type(windows[0])(*(_mean(values) for values in zip(*windows)))  # type: ignore[arg-type]


def _mean(values: Sequence[float | bool | None]) -> float | bool | None:
    known = [value for value in values if value is not None]
    if known and isinstance(known[0], bool):
        return any(known)
    return sum(known) / len(known) if known else None
