"""Removes the files in /dev/shm of a rank's ended processes, by which Intel's OpenMP had registered them.

libiomp5 leaves the file of a process that was killed, and of every worker of a data loader.
"""

from __future__ import annotations

import os
from typing import Collection

from ipexctl.node.common.processes import is_running

DIRECTORY = "/dev/shm"  # noqa: S108


class OpenmpFiles:
    """The processes of one rank that may have such a file."""

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def update(self, pids: Collection[int]) -> None:
        """`pids`: the rank's processes now. The files of earlier ones that have ended since are removed."""
        ended = {pid for pid in self._pids if pid not in pids and not is_running(pid)}
        self._pids = (self._pids | set(pids)) - ended
        for pid in ended:
            path = f"{DIRECTORY}/__KMP_REGISTERED_LIB_{pid}_{os.getuid()}"
            try:
                if os.lstat(path).st_uid == os.getuid():
                    os.unlink(path)
            except OSError:
                continue
