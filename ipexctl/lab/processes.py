"""Finds a host's processes by their network namespace, so no pid file can be stale."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_NETNS = Path("/run/netns")


def in_namespaces(names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """The pids of all processes in these namespaces, in one pass over /proc."""
    inodes: dict[tuple[int, int], str] = {}
    for name in names:
        try:
            info = (_NETNS / name).stat()
        except OSError:
            continue
        inodes[info.st_dev, info.st_ino] = name
    pids: dict[str, list[int]] = {name: [] for name in names}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            info = (entry / "ns/net").stat()
        except OSError:  # the process ended meanwhile
            continue
        name = inodes.get((info.st_dev, info.st_ino), "")
        if name:
            pids[name].append(int(entry.name))
    return {name: tuple(sorted(info)) for name, info in pids.items()}


def init_of(netns: str) -> int | None:
    """The pid of a host's first process, as seen from this machine."""
    for pid in in_namespaces([netns])[netns]:
        if _is_init(pid):
            return pid
    return None


def _is_init(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return innermost_pid(status) == 1 and "NSpid" in status and pid != 1


def innermost_pid(status: str) -> int | None:
    """The pid in the innermost namespace: the last number of NSpid in /proc/PID/status."""
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return None


def kill_all(names: Collection[str], *, timeout: float = 15) -> bool:
    """Kill all processes in these namespaces; True when none is left, False after the timeout."""
    deadline = time.monotonic() + timeout
    while True:
        pids = [pid for group in in_namespaces(names).values() for pid in group]
        if not pids:
            return True
        if time.monotonic() > deadline:
            return False
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
