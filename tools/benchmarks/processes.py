"""Processes of this machine and of a lab's hosts while they are measured, as /proc shows them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ipexctl.extras.lab import lab_system
from ipexctl.node.common.processes import read_stat

_SUPERVISOR: Final = b"run.supervisor"


def arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def is_detached(pid: int) -> bool:
    """In the session of a process that has ended: the supervisor, not the process that has started it and follows."""
    try:
        return not Path(f"/proc/{read_stat(pid).session}").exists()
    except OSError:
        return False


def high_water(pid: int) -> float:
    """MB at most. Not the figure of wait4, which includes the size of the process that started this one."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) * 1024 / 1e6 if found else 0.0


@dataclass
class Usage:
    """What one process has used at most so far."""

    cpu: float = 0.0
    size: float = 0.0
    """MB."""
    files: int = 0

    def update(self, pid: int) -> None:
        self.size = max(self.size, high_water(pid))
        try:
            self.cpu = max(self.cpu, read_stat(pid).seconds)
            self.files = max(self.files, len(os.listdir(f"/proc/{pid}/fd")))
        except OSError:
            return


class SupervisorWatch:
    """The supervisor of a run on a lab's host."""

    def __init__(self, netns: str) -> None:
        self._netns = netns
        self._pid = 0
        self.usage = Usage()

    def look(self) -> None:
        if not self._pid:
            pids = lab_system.in_namespaces({self._netns})[self._netns]
            self._pid = next((pid for pid in pids if _SUPERVISOR in arguments(pid) and is_detached(pid)), 0)
        if self._pid:
            self.usage.update(self._pid)
