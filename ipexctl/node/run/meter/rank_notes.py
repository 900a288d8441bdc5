"""Measures a rank's processes for each window, between two readings of /proc. None if the kernel does not report a
figure.

If a rank's gloo threads share its cores, its main thread queues behind them while they transfer. That is part of the
collective. gloo's threads run half of their time while the main thread is ready (measured: 0.45 to 0.53 with one core
per rank), so BEHIND_TRANSFER of their time, divided by the rank's cores, is subtracted from `queue`.
"""

from __future__ import annotations

import os
from typing import Collection, Iterator, Mapping, NamedTuple

from ipexctl.node.common.json_records import NATURAL, FieldDecoder
from ipexctl.node.common.processes import memory_of, read_stat, read_text

BACKWARD = "pt_autograd"
"""torch's name for backward threads. For a CPU-only graph there are none; the calling thread runs backward."""
TRANSFER = ("gloo_", "pt_gloo_")
"""Names of gloo's threads, which send, receive and sum."""
MAX_THREADS = 1024
"""Most threads of a process whose names are read."""
MAX_READS = 2
"""How often a thread's name is read, because a thread may get its name some time after its start."""
BEHIND_TRANSFER = 0.5
"""Fraction of gloo's time on a rank's only core in which the main thread is ready too."""
_NANO = 1e9
FIELD_DECODERS: dict[str, FieldDecoder] = {**NATURAL}


class RankNotes(NamedTuple):
    rss: float | None = None
    cpu: float | None = None
    queue: float | None = None
    faults_per_s: float | None = None


class _Reading(NamedTuple):
    at: float
    processes: Mapping[int, Mapping[str, float]]
    """Sums since each process's start."""
    threads: Mapping[int, Mapping[str, float]]
    rss: float
    main: int
    """The thread that steps the optimizer; 0 if it is unknown or belongs to none of `processes`."""


class RankProbe:
    def __init__(self, now: float, proc: str = "/proc", sharers: int = 1) -> None:
        """`sharers`: ranks of the host."""
        self._proc, self._sharers = proc, sharers
        self._reads: dict[tuple[int, int], int] = {}
        self._backward: set[tuple[int, int]] = set()
        self._transfer: set[tuple[int, int]] = set()
        self._edge = _Reading(now, {}, {}, 0, 0)
        self._latest = self._edge

    def update(self, pids: Collection[int], thread: int, now: float) -> None:
        """Read the rank's processes. `thread`: the one that steps the optimizer, 0 before the first step."""
        processes = {pid: values for pid in pids if (values := self._process(pid))}
        main = next(((pid, thread) for pid in processes if thread and self._has_thread(pid, thread)), None)
        # Before the first step, assume the first thread, so that its earlier time does not count in a later window.
        firsts = [(pid, pid) for pid in processes]
        self._find_threads(processes)
        looked_at = {*self._backward, *self._transfer, *([main] if main else firsts)}
        threads = {number: self._thread(pid, number) for pid, number in looked_at}
        rss = sum(values["rss"] for values in processes.values())
        self._latest = _Reading(now, processes, threads, rss, main[1] if main else 0)

    def take(self) -> RankNotes | None:
        """Return the figures since the last call; None if the processes were not read since, or are gone."""
        before, after = self._edge, self._latest
        seconds = after.at - before.at
        if seconds <= 0 or not after.processes:
            return None
        self._edge = after
        sums: dict[str, float] = {}
        for pid, values in after.processes.items():
            _add(sums, values, before.processes.get(pid, {}))
        main = _between(before, after, [after.main] if after.main in before.threads else [])
        backward = _between(before, after, [number for _, number in self._backward if number != after.main])
        transfer = _between(before, after, [number for _, number in self._transfer])

        behind = BEHIND_TRANSFER * min(seconds, transfer.get("cpu", 0.0)) / max(1.0, sums["cpu"] / seconds)

        def both(name: str, less: float = 0.0) -> float | None:
            if name not in main:
                return None
            return max(0.0, min(seconds, main[name] + backward.get(name, 0.0)) - less) / seconds

        return RankNotes(
            rss=after.rss, cpu=both("cpu"), queue=both("queue", behind), faults_per_s=sums["faults"] / seconds
        )

    def _process(self, pid: int) -> dict[str, float]:
        try:
            stat = read_stat(pid, self._proc)
            memory = memory_of(stat, self._sharers, self._proc)
        except OSError:
            return {}
        return {"cpu": stat.seconds, "faults": float(stat.faults), "rss": float(memory)}

    def _has_thread(self, pid: int, thread: int) -> bool:
        return os.path.exists(f"{self._proc}/{pid}/task/{thread}")

    def _find_threads(self, pids: Collection[int]) -> None:
        there = set(self._threads(pids))
        self._backward &= there
        self._transfer &= there
        self._reads = {thread: reads for thread, reads in self._reads.items() if thread in there}
        for thread in there - self._backward - self._transfer:
            reads = self._reads.get(thread, 0)
            if reads < MAX_READS:
                self._reads[thread] = reads + 1
                name = read_text(f"{self._proc}/{thread[0]}/task/{thread[1]}/comm")
                if name.startswith(BACKWARD):
                    self._backward.add(thread)
                elif name.startswith(TRANSFER):
                    self._transfer.add(thread)

    def _threads(self, pids: Collection[int]) -> Iterator[tuple[int, int]]:
        for pid in pids:
            try:
                names = os.listdir(f"{self._proc}/{pid}/task")
            except OSError:
                continue
            yield from ((pid, int(name)) for name in names[:MAX_THREADS] if name.isdigit())

    def _thread(self, pid: int, thread: int) -> dict[str, float]:
        schedule = read_text(f"{self._proc}/{pid}/task/{thread}/schedstat").split()
        if len(schedule) < 2:
            return {}
        return {"cpu": int(schedule[0]) / _NANO, "queue": int(schedule[1]) / _NANO}


def _between(before: _Reading, after: _Reading, threads: Collection[int]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for thread in threads:
        _add(sums, after.threads.get(thread, {}), before.threads.get(thread, {}))
    return sums


def _add(sums: dict[str, float], after: Mapping[str, float], before: Mapping[str, float]) -> None:
    """Add the difference of two readings. A new process or thread counts from its start."""
    for name, value in after.items():
        sums[name] = sums.get(name, 0.0) + max(0.0, value - before.get(name, 0.0))
