"""Starts the checkpoint-exchange process (`node/files/checkpoint.py`) from the lowest rank of each home."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from ipexctl.node.common.archive import agent_argv
from ipexctl.node.common.processes import end_with_parent

if TYPE_CHECKING:
    from ipexctl.node.common.plan import Plan


class CheckpointProcess:
    def __init__(self, plan: Plan, rank: int, address: str, port: int, token: str) -> None:
        below = os.path.relpath(plan.cwd, os.path.join(plan.home, "code"))
        request = {
            "rank": rank,
            "run": plan.id,
            "path": os.path.join(plan.cwd, plan.exchanged),
            "home": plan.home,
            "address": address,
            "port": port,
            "token": token,
            "project": plan.cwd if plan.asked.checkpoint_is_found else "",
            "tree": "" if os.path.isabs(plan.exchanged) else below.partition("/")[0],
        }
        self._process = subprocess.Popen(
            agent_argv(sys.executable, "files.checkpoint"),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=end_with_parent(signal.SIGTERM),
        )
        assert self._process.stdin is not None
        # If the process has already exited, `read_problem` tells why.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps(request).encode() + b"\n")

    @property
    def pid(self) -> int:
        """The process's pid, by which the rank wrapper finds its exit among those of its children."""
        return self._process.pid

    def end(self) -> None:
        """Ask the process to exit. Its exit still has to be taken."""
        os.kill(self.pid, signal.SIGTERM)

    def read_problem(self, status: int) -> str:
        """Return why the process failed; empty if it did not, or has told the supervisor. `status`: as from waitpid."""
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            lines = stderr.read().decode(errors="replace").splitlines()
        if not status:
            return ""
        is_killed = os.WIFSIGNALED(status)
        ended = f"was ended by signal {os.WTERMSIG(status)}" if is_killed else "failed without a message"
        return lines[-1] if lines else f"its checkpoint exchange {ended}"
