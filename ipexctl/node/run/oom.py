"""Whether the kernel killed a process for want of memory: by its cgroup's counters (v1, v2), else by the kernel's log.

Nothing here needs more rights than the rank has; where neither can be read, nothing is claimed.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import Any, Dict, Iterator, Tuple

RECENT = 60.0
"""Seconds that a kill may be ago: memory of hundreds of GB takes its time to be given back."""
LOG_TIME = 0.5
INITIAL_PIDS = 0xEFFFFFFC
"""Where the kernel's log and we count processes alike."""
UNLIMITED = 1 << 60
_KILLED = re.compile(rb"(Memory cgroup out of memory|Out of memory)[^\n]*?: Killed process (\d+)")
Json = Dict[str, Any]
Place = Tuple[int, str, str]
"""The cgroup's version, its directory, and where that hierarchy is mounted."""


def places_of(pid: int | str, proc: str = "/proc") -> list[Place]:
    """The cgroups that count a process' memory, as far as they can be seen from here."""
    try:
        with open(f"{proc}/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            paths = [line.rstrip("\n").split(":", 2) for line in file]
        with open(f"{proc}/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return []
    found = []
    for _, controllers, path in (each for each in paths if len(each) == 3):
        version = 1 if "memory" in controllers.split(",") else 2 if not controllers else 0
        for root, top in _mounted(mounts, version) if version else ():
            inside = path[len(root.rstrip("/")) :] if path.startswith(root) else path
            directory = os.path.normpath(top + "/" + inside)
            if (directory + "/").startswith(top.rstrip("/") + "/") and _kills(version, directory) is not None:
                found.append((version, directory, top))
                break
    return found


def _mounted(mounts: list[list[str]], version: int) -> Iterator[tuple[str, str]]:
    """Which part of the hierarchy is mounted where."""
    for fields in mounts:
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        if (version == 2 and kind == "cgroup2") or (version == 1 and kind == "cgroup" and "memory" in options):
            yield fields[3], fields[4]


def _kills(version: int, directory: str) -> int | None:
    text = _read(f"{directory}/{'memory.events' if version == 2 else 'memory.oom_control'}")
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def limit_of(place: Place) -> int | None:
    """The least of its own limit and those above it; None where there is none."""
    version, directory, top = place
    limits = []
    if version == 1:
        limits += re.findall(r"^hierarchical_memory_limit (\d+)$", _read(f"{directory}/memory.stat"), re.MULTILINE)
        limits.append(_read(f"{directory}/memory.limit_in_bytes").strip())
    while version == 2 and (directory + "/").startswith(top.rstrip("/") + "/"):
        limits.append(_read(f"{directory}/memory.max").strip())
        directory = os.path.dirname(directory)
    numbers = [int(limit) for limit in limits if limit.isdigit()]
    return min((number for number in numbers if number < UNLIMITED), default=None)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


class OutOfMemory:
    """One process, looked at from its start on: a counter says what happened only to who has read it before."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._pid, self._proc = pid, proc
        self._seen: dict[Place, list[tuple[float, int]]] = {}
        """Where it has been, and how many had been killed there when."""
        self._latest: list[Place] = []
        self._before: list[Place] = []
        self.look(time.monotonic())

    def look(self, now: float) -> None:
        places = places_of(self._pid, self._proc)
        if places and places != self._latest:  # one that is dead is said to be elsewhere
            self._before, self._latest = self._latest, places
        for place in places:
            kills, seen = _kills(place[0], place[1]), self._seen.setdefault(place, [])
            if kills is not None:
                seen.append((now, kills))
            while len(seen) > 1 and seen[1][0] < now - RECENT:
                seen.pop(0)

    def verdict(self) -> Json | None:
        """Of a process that SIGKILL has ended."""
        for place in (*self._latest, *self._before):
            kills, seen = _kills(place[0], place[1]), self._seen[place]
            if kills is not None and seen and kills > seen[0][1]:
                return {"by": "cgroup", "limit": limit_of(place)}
        said = killed_by_log(kernel_log(), self._pid) if _counts_as_kernel() else None
        if said is None:
            return None
        limits = [limit_of(place) for place in self._latest] if said == "cgroup" else []
        return {"by": "kernel log", "limit": next((limit for limit in limits if limit), None)}


def killed_by_log(log: bytes, pid: int) -> str | None:
    """Whether it says so of that process, and whose memory had run out: its cgroup's, or the machine's."""
    for what, number in reversed(_KILLED.findall(log)):
        if int(number) == pid:
            return "cgroup" if b"cgroup" in what else "machine"
    return None


def _counts_as_kernel() -> bool:
    try:
        return os.stat("/proc/self/ns/pid").st_ino == INITIAL_PIDS
    except OSError:
        return False


def kernel_log() -> bytes:
    """What it has said of late, as far as we may read it."""
    try:
        number = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return _dmesg()
    found, until = [], time.monotonic() + LOG_TIME
    try:
        while time.monotonic() < until:
            try:
                head, _, text = os.read(number, 8192).partition(b";")
            except BrokenPipeError:  # what we were about to read has been overwritten
                continue
            if _is_recent(int(head.split(b",")[2]) / 1e6):
                found.append(text)
    except (OSError, ValueError, IndexError):
        pass  # the end of it
    finally:
        os.close(number)
    return b"\n".join(found)


def _dmesg() -> bytes:
    try:
        said = subprocess.run(["dmesg"], capture_output=True, timeout=LOG_TIME, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return b""
    lines = ((line, re.match(rb"\[ *(\d+\.\d+)\]", line)) for line in said.splitlines())
    return b"\n".join(line for line, at in lines if at and _is_recent(float(at[1])))


def _is_recent(at: float) -> bool:
    """Seconds since the machine's start, as its log counts them."""
    return time.monotonic() - at < RECENT * 2
