"""Processes of this machine while they are measured, as /proc shows them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ipexctl.node.common.processes import read_stat


def arguments(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


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
