"""Figures of a rank and of a host in a window. None means unknown, not zero. Pure.

A rank's own time is the part of a step in which it does not wait for other ranks. Wall time does not show a slow rank,
because all-reduce makes it equal on all ranks. What is known about waiting depends on how ranks wait:

- `sleeps` (gloo): a rank waits while its threads are neither on a processor nor in the run queue nor waiting for data.
- `shared` (shared memory, one host): the all-reduce measures its waiting.
- `spins` (oneCCL, MPI): ranks wait on the processor. Only the run queue and waiting for data are known to be own time,
  so more work in one rank or a slow processor is not noticed.
- `independent` (no process group): ranks wait for nobody.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Sequence, TypeVar

Rates = TypeVar("Rates", bound="RankRates | HostRates")
Waiting = Literal["sleeps", "shared", "spins", "independent"]


class RankRates(NamedTuple):
    steps_per_s: float = 0.0
    samples_per_s: float | None = None
    data_wait: float | None = None
    """Fraction of the steps' time in which the rank waited for its DataLoader."""
    rss: float | None = None
    """Bytes of all processes of the rank."""
    cpu: float | None = None
    """Fraction of the time in which the stepping thread and the backward threads were on a processor."""
    queue: float | None = None
    """Fraction in which the threads of `cpu` were runnable but the processor was busy, except with own gloo threads."""
    collective_wait: float | None = None
    """Fraction in which the rank waited for other ranks; None if unknown, as when ranks spin."""
    faults_per_s: float | None = None
    """Pages read from disk."""

    @property
    def own_time(self) -> float | None:
        """Fraction of a step."""
        if self.collective_wait is not None:
            return 1.0 - self.collective_wait
        known = [part for part in (self.queue, self.data_wait) if part is not None]
        return min(1.0, sum(known)) if known else None


class HostRates(NamedTuple):
    sent_per_s: float | None = None
    """Bytes over the run's network interface; over all but the loopback if the run names none."""
    peak_sent_per_s: float | None = None
    mhz: float | None = None
    """Mean over some of the ranks' processors."""


def waiting_of(backend: str, allreduce: str, hosts: int) -> Waiting:
    """Return how the ranks wait for each other. With an unknown backend they may spin."""
    if backend == "none":
        return "independent"
    if backend != "gloo":
        return "spins"
    return "shared" if allreduce == "shared" and hosts == 1 else "sleeps"


def merge(windows: Sequence[Rates]) -> Rates:
    """Merge windows of equal length into one with the means of the known figures."""
    if len(windows) == 1:
        return windows[0]
    return type(windows[0])(*(_mean(values) for values in zip(*windows)))  # type: ignore[arg-type]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
