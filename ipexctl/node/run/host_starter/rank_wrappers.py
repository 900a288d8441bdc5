"""The rank wrappers of one host, started without mpirun: by the supervisor on node0, by a host starter elsewhere.

Each wrapper has its own session and is told by the supervisor when to exit, so it survives a killed starter.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import Callable, Iterable, Mapping, Sequence

from ipexctl.node.common.environ import account_variables
from ipexctl.node.common.processes import kill_sessions

ADDRESSES = 3
"""Words after the rank's number: the supervisor's two addresses and its port."""
_INHERITED = ("PATH", "LANG", "LANGUAGE", "TZ", "KRB5CCNAME")


def minimal_environment() -> dict[str, str]:
    """Return the variables of the login that mpirun and rank wrappers get. Others might have unwanted effects there."""
    environ = {name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith("LC_")}
    environ.update(account_variables())
    return environ


class RankWrappers:
    def __init__(self) -> None:
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def is_empty(self) -> bool:
        """True if there is no wrapper whose exit was not taken."""
        return not self._running

    @property
    def pids(self) -> list[int]:
        """The pids of the wrappers whose exits were not taken."""
        return [process.pid for process in self._running.values()]

    def start(
        self,
        ranks: Iterable[int],
        argv: Sequence[str],
        *,
        environ: Mapping[str, str],
        log: int,
        cwd: str,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        """Start a wrapper for each rank. Wrappers write their own messages to `log`. Raises an OSError."""
        for rank in ranks:
            self._running[rank] = subprocess.Popen(
                [*argv[:-ADDRESSES], str(rank), *argv[-ADDRESSES:]],
                cwd=cwd,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=prepare,
            )

    def take_ended(self) -> dict[int, int]:
        """Return rank → `Popen.returncode` of each wrapper that exited since the last call."""
        codes = {rank: process.poll() for rank, process in self._running.items()}
        ended = {rank: code for rank, code in codes.items() if code is not None}
        for rank in ended:
            del self._running[rank]
        return ended

    def signal(self, number: int) -> None:
        """Send a signal to all wrappers. One that has just exited is no error."""
        for pid in self.pids:
            with contextlib.suppress(OSError):
                os.killpg(pid, number)

    def kill(self) -> None:
        """Kill all processes in the sessions of the wrappers, and wait for the wrappers."""
        if self.is_empty:
            return
        kill_sessions(set(self.pids))
        for process in self._running.values():
            process.wait()
        self._running.clear()
