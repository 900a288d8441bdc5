"""Notes of a rank's processes for each window: processor time, memory, and how its stepping thread spent time.

In come the pids of the rank's processes and the thread that steps its optimizer, which the rank itself names
(`meter_ring.py`); out come rates between two readings of /proc. The rules: it needs no other rights than the rank's,
and what the kernel does not tell is None; a thread counts only if it belongs to one of these processes. Wall time says
little about a rank of DDP, as all-reduce makes it equal on all ranks: the time on a processor and the time in its queue
are what differs. Threads of gloo that run on the same cores let it wait there, too: what they used is noted for that.
"""

from __future__ import annotations

import os
from typing import Collection, Iterator, Mapping, NamedTuple

from ipexctl.node.common.json_records import NATURAL, FieldDecoder

BACKWARD = "pt_autograd"
"""How torch names the threads of backward. A graph on the CPU alone has none: its caller runs it."""
TRANSFER = ("gloo_", "pt_gloo_")
"""How the names of the threads begin by which gloo sends, receives and adds up."""
MAX_THREADS = 1024
"""Threads of a process that are looked at for their name."""
MAX_LOOKS = 2
"""A thread may get its name some time after it was started."""
_TICKS = float(os.sysconf("SC_CLK_TCK"))
_PAGE = os.sysconf("SC_PAGE_SIZE")
_NANO = 1e9
FIELD_DECODERS: dict[str, FieldDecoder] = {**NATURAL}


class RankNotes(NamedTuple):
    """`RankRates` of `rates.py` has what each means."""

    cores: float | None = None
    rss: float | None = None
    main_cpu: float | None = None
    main_queue: float | None = None
    backward_cpu: float | None = None
    backward_queue: float | None = None
    io_wait: float | None = None
    major_faults_per_s: float | None = None
    transfer_cpu: float | None = None


class _Reading(NamedTuple):
    at: float
    processes: Mapping[int, Mapping[str, float]]
    """Sums since each process was started."""
    threads: Mapping[int, Mapping[str, float]]
    rss: float
    main: int
    """The thread that steps; 0 if it is not known, or not one of these processes."""


class RankProbe:
    """Reads the processes of one command."""

    def __init__(self, now: float, proc: str = "/proc") -> None:
        self._proc = proc
        accounting = self._read("sys/kernel/task_delayacct").strip()
        self._has_delays = accounting != "0"  # without that file, the kernel always accounts for them
        self._looks: dict[tuple[int, int], int] = {}
        self._backward: set[tuple[int, int]] = set()
        self._transfer: set[tuple[int, int]] = set()
        self._edge = _Reading(now, {}, {}, 0, 0)
        self._latest = self._edge

    def update(self, pids: Collection[int], thread: int, now: float) -> None:
        """Read what the processes have used until now."""
        processes = {pid: values for pid in pids if (values := self._process(pid))}
        main = next(((pid, thread) for pid in processes if thread and self._has_thread(pid, thread)), None)
        # Mostly it is the first thread: what that has used before the first step is no part of a later window.
        firsts = [(pid, pid) for pid in processes]
        self._find_threads(processes)
        looked_at = {*self._backward, *self._transfer, *([main] if main else firsts)}
        threads = {number: self._thread(pid, number) for pid, number in looked_at}
        rss = sum(values["rss"] for values in processes.values())
        self._latest = _Reading(now, processes, threads, rss, main[1] if main else 0)

    def take(self) -> RankNotes | None:
        """The rates since `take` was called before; None without a new reading."""
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

        def rate(values: Mapping[str, float], name: str) -> float | None:
            return values[name] / seconds if name in values else None

        return RankNotes(
            cores=rate(sums, "cpu"),
            rss=after.rss,
            main_cpu=rate(main, "cpu"),
            main_queue=rate(main, "queue"),
            backward_cpu=rate(backward, "cpu"),
            backward_queue=rate(backward, "queue"),
            io_wait=rate(main, "delay") if self._has_delays else None,
            major_faults_per_s=rate(sums, "faults"),
            transfer_cpu=rate(transfer, "cpu"),
        )

    def _read(self, path: str) -> str:
        try:
            with open(f"{self._proc}/{path}", encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def _stat(self, path: str) -> list[str]:
        return self._read(path).rpartition(")")[2].split()

    def _process(self, pid: int) -> dict[str, float]:
        fields = self._stat(f"{pid}/stat")
        if len(fields) < 22:
            return {}
        return {
            "cpu": (int(fields[11]) + int(fields[12])) / _TICKS,
            "faults": float(fields[9]),
            "rss": float(int(fields[21]) * _PAGE),
        }

    def _has_thread(self, pid: int, thread: int) -> bool:
        return os.path.exists(f"{self._proc}/{pid}/task/{thread}")

    def _find_threads(self, pids: Collection[int]) -> None:
        """Those of backward and of transfers, by their names."""
        there = set(self._threads(pids))
        self._backward &= there
        self._transfer &= there
        self._looks = {thread: looks for thread, looks in self._looks.items() if thread in there}
        for thread in there - self._backward - self._transfer:
            looks = self._looks.get(thread, 0)
            if looks < MAX_LOOKS:
                self._looks[thread] = looks + 1
                name = self._read(f"{thread[0]}/task/{thread[1]}/comm")
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
        values: dict[str, float] = {}
        path = f"{pid}/task/{thread}"
        schedule = self._read(f"{path}/schedstat").split()
        if len(schedule) >= 2:
            values["cpu"], values["queue"] = int(schedule[0]) / _NANO, int(schedule[1]) / _NANO
        fields = self._stat(f"{path}/stat")
        if len(fields) > 39:
            values["delay"] = int(fields[39]) / _TICKS
        return values


def _between(before: _Reading, after: _Reading, threads: Collection[int]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for thread in threads:
        _add(sums, after.threads.get(thread, {}), before.threads.get(thread, {}))
    return sums


def _add(sums: dict[str, float], after: Mapping[str, float], before: Mapping[str, float]) -> None:
    """A process or thread that was not there before counts from its start."""
    for name, value in after.items():
        sums[name] = sums.get(name, 0.0) + max(0.0, value - before.get(name, 0.0))
