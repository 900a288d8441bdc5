"""The figures of a rank and of a host in a window. Pure. None is what can't be known there, which is not zero."""

from __future__ import annotations

from typing import NamedTuple, Sequence, TypeVar

Rates = TypeVar("Rates", bound="RankRates | HostRates")


class RankRates(NamedTuple):
    """One rank, over a window. Threads: the one that steps the optimizer, and those that torch makes for backward."""

    steps_per_s: float = 0.0
    samples_per_s: float | None = None
    data_wait: float | None = None
    """The part of the steps' time in which the rank waited for its DataLoader."""
    by_metric: bool = False
    """The samples are from the script's output."""
    cores: float | None = None
    """Processor time by time, of the rank's processes."""
    rss: float | None = None
    """Bytes of its processes."""
    main_cpu: float | None = None
    """The part of the time in which the thread was on a processor."""
    main_queue: float | None = None
    """The part in which it could run, and another thread had the processor."""
    backward_cpu: float | None = None
    backward_queue: float | None = None
    reduce_wait: float | None = None
    """The part of the time in which it waited for other ranks in the all-reduce in shared memory."""
    io_wait: float | None = None
    """The part in which the thread waited for a disk; None where the kernel does not account for that."""
    major_faults_per_s: float | None = None
    """Pages read from a disk."""
    transfer_cpu: float | None = None
    """Processors that gloo's threads were on: they send, receive and add up. More than one counts as one."""


class HostRates(NamedTuple):
    """One host, over a window."""

    busy: float | None = None
    """The part of all processors' time in use."""
    cpu_pressure: float | None = None
    """The part of the time in which some process waited for a processor, memory, a disk (PSI)."""
    memory_pressure: float | None = None
    io_pressure: float | None = None
    steal: float | None = None
    """The part of all processors' time that the hypervisor gave to others."""
    throttled: float | None = None
    """Of the periods of the ranks' cgroup, those in which it had used up its processor time."""
    mhz: float | None = None
    """The mean over some processors of the ranks."""
    hot_per_s: float | None = None
    """How often a processor slowed down because of its temperature."""
    memory_used: float | None = None
    """Bytes."""
    swap_per_s: float | None = None
    """Bytes in and out."""
    received_per_s: float | None = None
    """Bytes over the run's interface; over all but the loopback, if the run names none."""
    sent_per_s: float | None = None
    retransmits_per_s: float | None = None
    """TCP segments that were sent again."""
    read_per_s: float | None = None
    """Bytes from and to all disks."""
    write_per_s: float | None = None
    disk_busy: float | None = None
    """Of the busiest disk."""
    peak_sent_per_s: float | None = None
    """Bytes over the run's interface, in the busiest moment that was looked at."""


def merge(windows: Sequence[Rates]) -> Rates:
    """One window in place of several of the same length: the means of what is known."""
    return type(windows[0])(*(_mean(values) for values in zip(*windows)))  # type: ignore[arg-type]


def _mean(values: Sequence[float | bool | None]) -> float | bool | None:
    known = [value for value in values if value is not None]
    if known and isinstance(known[0], bool):
        return any(known)
    return sum(known) / len(known) if known else None
