"""Detects out-of-memory kills, after a rank that failed: from counters of the cgroup (v1, v2), the kernel's log, or its
kill counter. Most machines show the log only to root, and a container may hide its cgroups.

Guards such as earlyoom send signals themselves, which the kernel does not count as kills for memory.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import Iterator, NamedTuple, Tuple, TypeVar

from ipexctl.node.common.processes import read_text
from ipexctl.node.common.records import Proof

RECENT = 60.0
"""Maximum age of a kill in seconds. Freeing hundreds of GB of memory takes a while."""
LOG_TIME = 2.0
"""Seconds for dmesg to run, on a machine that was just out of memory."""
INITIAL_PIDS = 0xEFFFFFFC
"""Inode of the initial pid namespace, whose pids the kernel log uses."""
UNLIMITED = 1 << 60
_KILLED = re.compile(rb"(Memory cgroup out of memory|Out of memory)[^\n]*?: Killed process (\d+)")
GUARDS = ("earlyoom", "systemd-oomd", "nohang", "oomd")
"""Programs that end others when memory gets short."""
_SHORT = 0.12
"""Part of the memory that is available when guards act (earlyoom's default: 0.1)."""
Number = TypeVar("Number", int, float)
Cgroup = Tuple[int, str, str]
"""Version of a cgroup, its directory, and the mount point of its hierarchy."""


def cgroups_of(pid: int | str, proc: str = "/proc") -> list[Cgroup]:
    """Return the cgroups of a process whose counter of out-of-memory kills can be read; empty where a container hides
    them."""
    try:
        with open(f"{proc}/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            paths = [line.rstrip("\n").split(":", 2) for line in file]
        with open(f"{proc}/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return []
    cgroups = []
    for _, controllers, path in (fields for fields in paths if len(fields) == 3):
        version = 1 if "memory" in controllers.split(",") else 2 if not controllers else 0
        for root, top in _mounted(mounts, version) if version else ():
            inside = path[len(root.rstrip("/")) :] if path.startswith(root) else path
            directory = os.path.normpath(top + "/" + inside)
            if (directory + "/").startswith(top.rstrip("/") + "/") and _kills(version, directory) is not None:
                cgroups.append((version, directory, top))
                break
    return cgroups


def _mounted(mounts: list[list[str]], version: int) -> Iterator[tuple[str, str]]:
    for fields in mounts:
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        if (version == 2 and kind == "cgroup2") or (version == 1 and kind == "cgroup" and "memory" in options):
            yield fields[3], fields[4]


def _kills(version: int, directory: str) -> int | None:
    text = read_text(f"{directory}/{'memory.events' if version == 2 else 'memory.oom_control'}")
    match = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else None


def _times_reached(cgroup: Cgroup) -> int | None:
    """Return how often the limits of the cgroup and its parents were reached; None if unknown.

    The kill counter does not tell: it also rises when the whole machine runs out of memory.
    """
    version, directory, top = cgroup
    counts: list[str] = []
    while (directory + "/").startswith(top.rstrip("/") + "/"):
        if version == 1:
            counts += re.findall(r"^(\d+)$", read_text(f"{directory}/memory.failcnt"), re.MULTILINE)
        else:
            counts += re.findall(r"^oom (\d+)$", read_text(f"{directory}/memory.events"), re.MULTILINE)
        if directory == "/":
            break
        directory = os.path.dirname(directory)
    return sum(map(int, counts)) if counts else None


def kills_of_machine(proc: str = "/proc") -> int | None:
    """Return the out-of-memory kills of any process since boot; None before Linux 4.13."""
    match = re.search(r"^oom_kill (\d+)$", read_text(f"{proc}/vmstat"), re.MULTILINE)
    return int(match[1]) if match else None


def available_memory(proc: str = "/proc") -> float | None:
    """Return which part of the machine's memory programs can get; None before Linux 3.14."""
    sizes = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", read_text(f"{proc}/meminfo"), re.MULTILINE))
    total = int(sizes.get("MemTotal", 0))
    return int(sizes["MemAvailable"]) / total if total and "MemAvailable" in sizes else None


def find_guards(proc: str = "/proc") -> list[str]:
    """Return the names of guards of memory that run on this machine."""
    try:
        pids = [name for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []
    names = {read_text(f"{proc}/{pid}/comm").strip() for pid in pids}
    return [guard for guard in GUARDS if guard[:15] in names]


def refused_processes(proc: str = "/proc") -> int:
    """Return how often pids.max refused a process or thread: counted at the limit by kernels since 6.11; 0 in cgroup
    v1."""
    counts = [0]
    for version, directory, top in cgroups_of("self", proc):
        while version == 2 and (directory + "/").startswith(top.rstrip("/") + "/"):
            counts += map(int, re.findall(r"^max (\d+)$", read_text(f"{directory}/pids.events"), re.MULTILINE))
            directory = os.path.dirname(directory)
    return max(counts)


def limit_of(cgroup: Cgroup) -> int | None:
    """Return the smallest memory limit of a cgroup and those above it, in bytes; None if there is none."""
    version, directory, top = cgroup
    limits = []
    if version == 1:
        limits += re.findall(r"^hierarchical_memory_limit (\d+)$", read_text(f"{directory}/memory.stat"), re.MULTILINE)
        limits.append(read_text(f"{directory}/memory.limit_in_bytes").strip())
    while version == 2 and (directory + "/").startswith(top.rstrip("/") + "/"):
        limits.append(read_text(f"{directory}/memory.max").strip())
        directory = os.path.dirname(directory)
    numbers = [int(limit) for limit in limits if limit.isdigit()]
    return min((number for number in numbers if number < UNLIMITED), default=None)


class KillCount(NamedTuple):
    """Kills for memory that the kernel counted while a process was watched."""

    kills: int | None
    """None if nothing that counts them can be read."""
    by: str = ""
    """Where it was read: cgroup, kernel log, vmstat."""
    limit: int | None = None
    """Memory limit in bytes; None unless the cgroup reached it."""


class OutOfMemoryWatch:
    """Watches a process from its start, because a counter says something only compared with an earlier value."""

    def __init__(self, pid: int, now: float, proc: str = "/proc") -> None:
        self._pid, self._proc = pid, proc
        self._seen: dict[Cgroup, list[tuple[float, int]]] = {}
        """Cgroup → time and kill counter of each reading."""
        self._reached: dict[Cgroup, int | None] = {}
        """Cgroup → how often a limit had been reached when the cgroup was first read."""
        self._machine: list[tuple[float, int]] = []
        self._available: list[tuple[float, float]] = []
        """Time and part of the machine's memory that was available."""
        self._refused = refused_processes(proc)
        self._latest: list[Cgroup] = []
        self._before: list[Cgroup] = []
        self.update(now)

    def update(self, now: float) -> None:
        """Read the counters. Those of a cgroup say something only if they were read before, while the process was in
        it."""
        cgroups = cgroups_of(self._pid, self._proc)
        if cgroups and cgroups != self._latest:  # the kernel shows another cgroup for a dead process
            self._before, self._latest = self._latest, cgroups
        for cgroup in cgroups:
            kills, seen = _kills(cgroup[0], cgroup[1]), self._seen.setdefault(cgroup, [])
            self._reached.setdefault(cgroup, _times_reached(cgroup))
            _add(seen, now, kills)
        _add(self._machine, now, kills_of_machine(self._proc))
        _add(self._available, now, available_memory(self._proc))

    def find_kill(self, now: float, *, reads_log: bool = True) -> KillCount:
        """Return how many kills for memory the kernel has counted while the process was watched, or in the last minute
        of that, and where that was read.

        `reads_log`: also look for the process in the kernel's log.
        """
        for cgroup in (*self._latest, *self._before):
            kills, seen = _kills(cgroup[0], cgroup[1]), self._seen[cgroup]
            if kills is not None and seen and kills > seen[0][1]:
                limit = limit_of(cgroup) if self._is_limit_reached(cgroup) else None
                return KillCount(kills - seen[0][1], "cgroup", limit)
        scope = find_kill_in_log(kernel_log(now), self._pid) if reads_log and _is_initial_pid_namespace() else None
        if scope is not None:
            limits = [limit_of(cgroup) for cgroup in self._latest] if scope == "cgroup" else []
            return KillCount(1, "kernel log", next((limit for limit in limits if limit), None))
        if self._latest:  # its own counter did not rise: a kill that vmstat counts is of another cgroup
            return KillCount(0, "cgroup")
        kills = kills_of_machine(self._proc)
        if kills is not None and self._machine:
            return KillCount(max(0, kills - self._machine[0][1]), "vmstat")
        return KillCount(None)

    def describe(self, found: KillCount) -> list[Proof]:
        """Return what was measured, as evidence: the count, the least memory that was available, and guards that run. A
        process that this one does not see may be a guard, too."""
        by = {"vmstat": "oom_kill of /proc/vmstat", "cgroup": "oom_kill of its cgroup"}.get(found.by, found.by)
        if found.kills is None:
            measured = [Proof("oom-unread", "the kernel's counters of kills for memory can't be read")]
        elif found.kills and found.by == "vmstat" and self._least_available >= _SHORT:
            text = f"the kernel counted a kill for memory on this machine, of this or another process ({by})"
            measured = [Proof("oom-elsewhere", text)]
        elif found.kills:
            measured = [Proof("oom-counted", f"the kernel counted a kill for memory ({by})")]
        else:
            measured = [Proof("oom-none", f"the kernel counted no kill for memory ({by})")]
        if self._available:
            kind = "memory-low" if self._least_available < _SHORT else "memory-free"
            measured.append(Proof(kind, f"at least {100 * self._least_available:.0f} % of the memory was available"))
        if more := refused_processes(self._proc) - self._refused:
            text = f"its cgroup refused {more:,} processes or threads (pids.max, counted in pids.events)"
            measured.append(Proof("limit-pids", text))
        guards = find_guards(self._proc)
        return [*measured, Proof("guard", ", ".join(guards))] if guards else measured

    @property
    def _least_available(self) -> float:
        """0 if unknown."""
        return min((part for _, part in self._available), default=0.0)

    def _is_limit_reached(self, cgroup: Cgroup) -> bool:
        before, now = self._reached.get(cgroup), _times_reached(cgroup)
        return before is None or now is None or now > before


def _add(seen: list[tuple[float, Number]], now: float, value: Number | None) -> None:
    if value is not None:
        seen.append((now, value))
    while len(seen) > 1 and seen[1][0] < now - RECENT:
        seen.pop(0)


def find_kill_in_log(log: bytes, pid: int) -> str | None:
    """Return which memory ran out when the process was killed, `cgroup` or `machine`; None if the log has no kill of
    this process."""
    for what, number in reversed(_KILLED.findall(log)):
        if int(number) == pid:
            return "cgroup" if b"cgroup" in what else "machine"
    return None


def _is_initial_pid_namespace() -> bool:
    try:
        return os.stat("/proc/self/ns/pid").st_ino == INITIAL_PIDS
    except OSError:
        return False


def kernel_log(now: float) -> bytes:
    """Return the lines of dmesg from the last two minutes; empty if this account may not read it. `now`: the monotonic
    clock, as in the lines."""
    try:
        output = subprocess.run(["dmesg"], capture_output=True, timeout=LOG_TIME, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return b""
    lines = ((line, re.match(rb"\[ *(\d+\.\d+)\]", line)) for line in output.splitlines())
    return b"\n".join(line for line, at in lines if at and now - float(at[1]) < RECENT * 2)
