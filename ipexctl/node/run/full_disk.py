"""Whether a disk was full when a rank failed: what it printed often says only that it could not write."""

from __future__ import annotations

import os
from typing import Iterable

from ipexctl.node.common.records import FullDisk

FULL = 1 << 20
"""Bytes. No checkpoint fits in less, and a file that was cut short has left no more."""


def find_full_disk(paths: Iterable[str]) -> FullDisk | None:
    """The first of these filesystems on which this account can write no more; a path that is missing is left out."""
    is_root = os.geteuid() == 0  # a part may be reserved for root
    for path in paths:
        try:
            status = os.statvfs(path)
        except OSError:
            continue
        free = (status.f_bfree if is_root else status.f_bavail) * status.f_frsize
        no_files = status.f_files > 0 and (status.f_ffree if is_root else status.f_favail) == 0
        if status.f_blocks and (free < FULL or no_files):
            return FullDisk(path, free, status.f_blocks * status.f_frsize, no_files and free >= FULL)
    return None
